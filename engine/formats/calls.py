"""How models write tool calls: as JSON objects, by name with JSON arguments, or with a tag for each argument.

A style reads the calls behind its mark (`read`) and gives the grammar that forces them (`lark`). The styles' marks and
keys come from the families' templates: `families.py`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .json_text import escaped, pass_value, read_string, read_value
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tools import Tool

_HOLE = re.compile(r"\{(\w+)\}")


class CallStyle(Protocol):
    """What a parser and a grammar need of a way to write calls.

    starts: the marks behind which calls stand. is_bare: calls may also begin an answer without a mark. is_always: the
    marks count without tools, too.
    """

    @property
    def starts(self) -> tuple[str, ...]: ...

    @property
    def is_bare(self) -> bool: ...

    @property
    def is_always(self) -> bool: ...

    def read(self, r: CallReader, start: str) -> Steps[None]:
        """Read the calls behind the mark `start`. Raises: Malformed."""

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        """The grammar of one call or, with is_parallel, of one or more."""

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        """Calls (name and JSON arguments) as the model writes them, None where that is the template's to do."""


@dataclass(frozen=True)
class JsonCalls:
    """Objects with a name and arguments: one between `start` and `end`, several (`is_many`), or a list (`is_list`).

    is_keyed: `{name: arguments}`. `inner` is what the template writes behind start and before end.
    """

    start: str
    end: str = ""
    is_many: bool = False
    is_list: bool = False
    is_keyed: bool = False
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str | None = None
    inner: str = "\n"
    between: str = ", "
    also: tuple[str, ...] = ()
    is_bare: bool = False
    is_always: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        return tuple(mark for mark in (self.start, *self.also) if mark)

    def read(self, r: CallReader, start: str) -> Steps[None]:
        yield from r.skip_space()
        is_list = yield from r.take("[")
        while True:
            yield from r.skip_space()
            yield from self._read_object(r)
            r.used()
            yield from r.skip_space()
            if (yield from r.take(",")) or (yield from r.take(";")):
                continue
            if is_list and (yield from r.take("]")):
                yield from r.skip_space()
                is_list = False
            if not self.end or not (yield from r.has(1)):
                return
            if (yield from r.take(self.end)):
                return
            if (yield from r.peek()) != "{":
                raise Malformed("expected another call or the end")

    def _read_object(self, r: CallReader) -> Steps[None]:
        name: str | None = None
        id: str | None = None
        arguments: str | None = None
        is_open = False
        yield from r.expect("{")
        while not (yield from self._at_end(r)):
            key = yield from read_string(r)
            yield from r.skip_space()
            yield from r.expect(":")
            yield from r.skip_space()
            if key == self.name_key and not self.is_keyed:
                name = yield from read_string(r)
            elif key == self.id_key or (key == "id" and not self.is_bare):
                id = json_text((yield from read_value(r)))
            elif key in (self.arguments_key, "arguments", "parameters") or self.is_keyed:
                name = key if self.is_keyed else name
                if name is not None and not is_open and (yield from r.peek()) == "{":
                    self._open(r, name, id)
                    is_open = True
                    yield from pass_value(r, r.arguments)
                else:
                    arguments = json_text((yield from read_value(r)))
            elif key == "function" and (yield from r.peek()) == "{":
                yield from self._read_object(r)
                is_open = True
            elif self.is_bare and key != "type":
                raise Malformed(f"a key {key!r}, which calls do not have")
            else:
                yield from read_value(r)
        if not is_open:
            if name is None or (self.is_bare and arguments is None):
                raise Malformed("a call without a name or arguments")
            self._open(r, name, id)
            r.arguments(arguments or "{}")

    def _open(self, r: CallReader, name: str, id: str | None) -> None:
        if self.is_bare and name not in r.tools:
            raise Malformed(f"{name!r} is none of the tools")
        r.open_call(name, id)

    @staticmethod
    def _at_end(r: CallReader) -> Steps[bool]:
        """Move to the next key, or behind the object."""
        yield from r.skip_space()
        if (yield from r.take(",")):
            yield from r.skip_space()
        return (yield from r.take("}"))

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        call = g.choice([g.rule(self._lark_object(g, tool)) for tool in tools])
        several = f"{call} ({g.literal(self.between)} {call})*" if is_parallel else call
        if self.is_list:
            opened, closed = self.start + self.inner + "[", "]" + self.inner + self.end
            return f"{g.literal(opened)} {several} {g.literal(closed)}"
        if self.is_many:
            return f"{g.literal(self.start + self.inner)} {several} {g.literal(self.inner + self.end)}"
        one = g.rule(f"{g.literal(self.start + self.inner)} {call} {g.literal(self.inner + self.end)}")
        return f"{one} ({g.literal(self.between)} {one})*" if is_parallel else one

    def _lark_object(self, g: LarkText, tool: Tool) -> str:
        if self.is_keyed:
            return f"{g.literal('{' + json.dumps(tool.name) + ': ')} {g.schema(tool.parameters)} {g.literal('}')}"
        head = f'{{"{self.name_key}": {json.dumps(tool.name)}, "{self.arguments_key}": '
        opening = g.literal(head)
        closing = g.literal("}")
        if self.id_key == "tool_call_id":  # Cohere counts, and says the number first
            first, second = g.literal('{"tool_call_id": "'), g.literal('", ' + head[1:])
            opening = f"{first} {g.terminal('[0-9]')} {second}"
        elif self.id_key:
            first, second = g.literal(', "id": "'), g.literal('"}')
            closing = f"{first} {g.terminal('[a-zA-Z0-9]{9}')} {second}"
        return f"{opening} {g.schema(tool.parameters)} {closing}"

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        objects = [
            f'{{"{self.name_key}": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": {arguments}}}'
            for name, arguments in calls
        ]
        if self.is_list:
            return f"{self.start}{self.inner}[{self.between.join(objects)}]{self.inner}{self.end}"
        return self.between.join(f"{self.start}{self.inner}{item}{self.inner}{self.end}" for item in objects)


@dataclass(frozen=True)
class NamedCalls:
    """A name between marks, then the arguments as JSON.

    head is written with holes: `[TOOL_CALLS]{name}[ARGS]`; calls stand between `start` and `end`, which may be empty.
    `also` are heads that models write as well. text_name: what stands for the name of a stretch that is content.
    """

    head: str
    tail: str = ""
    start: str = ""
    end: str = ""
    between: str = ""
    also: tuple[str, ...] = ()
    name_prefix: str = ""
    has_number: bool = False
    text_name: str | None = None
    is_bare: bool = False

    @property
    def is_always(self) -> bool:
        return self.text_name is not None

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start,) if self.start else (self.head.partition("{")[0],)

    def read(self, r: CallReader, start: str) -> Steps[None]:
        is_first = not self.start
        while True:
            yield from r.skip_space()
            found = yield from self._read_head(r, self.head.removeprefix(start) if is_first else self.head)
            is_first = False
            name, id = found
            if name == self.text_name:
                r.used()
                return
            r.open_call(name, id)
            yield from r.skip_space()
            if (yield from r.peek()) != "{":
                raise Malformed("expected arguments")
            yield from pass_value(r, r.arguments)
            if (yield from self._ends(r)):
                return

    def _ends(self, r: CallReader) -> Steps[bool]:
        """Move behind a call's end; whether it was the last."""
        yield from r.skip_space()
        tail = self.tail.strip()
        if tail and (yield from r.has(1)) and not (yield from r.take(tail)):
            raise Malformed("expected the end of a call")
        r.used()
        yield from r.skip_space()
        if not self.start or not (yield from r.has(1)):
            return True
        return bool(self.end) and (yield from r.take(self.end))

    def _read_head(self, r: CallReader, head: str) -> Steps[tuple[str, str | None]]:
        values: dict[str, str] = {}
        parts = _HOLE.split(head)
        if parts[0]:
            yield from r.expect(parts[0])
        others = [other for other in self.also if other.startswith(self.head.partition("{")[0])]
        k = 1
        while k < len(parts):
            ends = [parts[k + 1].lstrip() or "\n"]
            alternatives = {tail: other for other in others if (tail := _end_of_name(other)) not in ends}
            value, end = yield from r.until(*ends, *alternatives, limit=200)
            values[parts[k]] = value.strip()
            if end in alternatives:  # another head, which differs behind the name
                parts, others = _HOLE.split(alternatives[end]), []
            k += 2
        name = values.get("name", "").removeprefix(self.name_prefix)
        id = values.get("id")
        if self.has_number:
            name, id = name.partition(":")[0], self.name_prefix + name
        if not name or "\n" in name or "<" in name:
            raise Malformed("expected the name of a tool")
        return name, id

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        call = g.choice([g.rule(self._lark_call(g, tool)) for tool in tools])
        several = f"{call} ({g.literal(self.between)} {call})*" if is_parallel else call
        opening = [g.literal(self.start)] if self.start else []
        return " ".join([*opening, several, *([g.literal(self.end)] if self.end else [])])

    def _lark_call(self, g: LarkText, tool: Tool) -> str:
        number = ":{number}" if self.has_number else ""
        head = self.head.replace("{name}", self.name_prefix + tool.name + number)
        before, hole, behind = head.partition("{id}" if "{id}" in head else "{number}")
        parts = [g.literal(before)] if before else []
        if hole:
            parts += [g.terminal("[0-9]" if hole == "{number}" else "[a-zA-Z0-9]{9}"), g.literal(behind)]
        parts.append(g.schema(tool.parameters))
        return " ".join(parts + ([g.literal(self.tail)] if self.tail else []))

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        return None


@dataclass(frozen=True)
class TaggedCalls:
    """A name between marks, then each argument between marks of its own.

    head has the hole {name}, argument the holes {key} and, where the template says it, {string} or {type}. Arguments
    that the tool's schema calls text, or that are no JSON, are text. `inner` is what the template puts around a value.
    """

    start: str
    head: str
    argument: str
    value_end: str
    tail: str
    end: str
    inner: str = ""
    between: str = "\n"
    behind_value: str = "\n"
    also: tuple[str, ...] = ()
    is_bare: bool = False
    is_always: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        return ((self.start.rstrip() or self.head.partition("{")[0]), *self.also)

    def read(self, r: CallReader, start: str) -> Steps[None]:
        head = self.head.lstrip()
        if start == head.partition("{")[0]:
            head = head.removeprefix(start)
        while True:
            yield from r.skip_space()
            yield from self._read_call(r, head)
            head = self.head.lstrip()
            r.used()
            yield from r.skip_space()
            end = self.end.strip()
            if not end or not (yield from r.has(1)) or (yield from r.take(end)):
                return
            if start in self.also and not (yield from r.starts_with(head.partition("{")[0])):
                return

    def _read_call(self, r: CallReader, head: str) -> Steps[None]:
        parts = _HOLE.split(head)
        yield from r.expect(parts[0])
        values: dict[str, str] = {}
        for k in range(1, len(parts), 2):
            behind = parts[k + 1].strip()
            if behind:
                values[parts[k]], _ = yield from r.until(behind, limit=200)
            else:
                values[parts[k]], end = yield from r.until(self._argument_start, self._close(), limit=200)
                r.at -= len(end)
        name = values["name"].strip()
        if not name or "<" in name or "\n" in name:
            raise Malformed("expected the name of a tool")
        r.open_call(name)
        r.arguments("{")
        is_first = True
        while True:
            yield from r.skip_space()
            if (yield from r.take(self._close())):
                break
            yield from self._read_argument(r, r.tools.get(name), is_first)
            is_first = False
        r.arguments("}")

    @property
    def _argument_start(self) -> str:
        return self.argument.strip().partition("{")[0]

    def _close(self) -> str:
        return self.tail.strip() or self.end.strip()

    def _read_argument(self, r: CallReader, tool: Tool | None, is_first: bool) -> Steps[None]:
        parts = _HOLE.split(self.argument.strip())
        yield from r.expect(parts[0].rstrip())
        values: dict[str, str] = {}
        for k in range(1, len(parts), 2):
            values[parts[k]], _ = yield from r.until(parts[k + 1].split("\n")[0], limit=1000)
            if "\n" in parts[k + 1]:  # a line break between the marks, which not all models write
                yield from r.skip_space()
                yield from r.expect(parts[k + 1].split("\n")[1])
        key = values["key"].strip()
        r.arguments(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
        if "\n" in self.inner:
            yield from r.take("\n")
        ends = [self.value_end] if "\n" not in self.inner else ["\n" + self.value_end, self.value_end]
        is_text = tool.is_text(key) if tool is not None else None
        if "string" in values or "type" in values:
            is_text = values.get("string", values.get("type")) in ("true", "string")
        if is_text:
            r.arguments('"')
            yield from r.stream(lambda text: r.arguments(escaped(text)), *ends)
            r.arguments('"')
        else:
            value, _ = yield from r.until(*ends, limit=1 << 24)
            r.arguments(as_json(value, is_text))

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        call = g.choice([g.rule(self._lark_call(g, tool)) for tool in tools])
        if not self.start or self.tail.strip() == "":
            one = g.rule(f"{g.literal(self.start)} {call} {g.literal(self.end)}") if self.start else call
            return f"{one} ({g.literal(self.between)} {one})*" if is_parallel else one
        several = f"{call} ({g.literal(self.between)} {call})*" if is_parallel else call
        return f"{g.literal(self.start)} {several} {g.literal(self.end)}"

    def _lark_call(self, g: LarkText, tool: Tool) -> str:
        parts = [g.literal(self.head.replace("{name}", tool.name).replace("{index}", "1"))]
        for key in tool.properties:
            argument = g.rule(self._lark_argument(g, tool, key))
            parts.append(argument if key in tool.required else f"{argument}?")
        return " ".join(parts + ([g.literal(self.tail)] if self.tail else []))

    def _lark_argument(self, g: LarkText, tool: Tool, key: str) -> str:
        is_text = tool.is_text(key)
        kind = tool.schema_of(key).get("type", "string")
        holes = {"key": key, "string": str(bool(is_text)).lower(), "type": "number" if kind == "integer" else str(kind)}
        opening = g.literal(_HOLE.sub(lambda hole: holes[hole[1]], self.argument) + self.inner)
        closing = self.inner + self.value_end
        choices = tool.schema_of(key).get("enum")
        if is_text and isinstance(choices, list):
            value = g.choice([g.literal(f"{choice}{closing}") for choice in choices])
        elif is_text or is_text is None:
            value = g.until(closing)
        else:
            value = f"{g.schema(tool.schema_of(key))} {g.literal(closing)}"
        return f"{opening} {value} {g.literal(self.behind_value)}" if self.behind_value else f"{opening} {value}"

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        return None


def json_text(value: str) -> str:
    """What a JSON value says where it is a string, else its text."""
    if value.startswith('"'):
        return str(json.loads(value, strict=False))
    return "" if value == "null" else value


def as_json(value: str, is_text: bool | None) -> str:
    """A value between tags as JSON: itself where it is JSON, else what Python can make of it, else text."""
    text = value.strip()
    try:
        json.loads(text)
        return text
    except ValueError:
        pass
    if is_text is False:
        try:
            return json.dumps(ast.literal_eval(text), ensure_ascii=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return json.dumps(value, ensure_ascii=False)


def _end_of_name(head: str) -> str:
    return _HOLE.split(head)[2]
