"""Tool calls with a tag for each argument: Qwen 3 Coder, GLM, MiniMax M2, DeepSeek V3.2, Kimi K3."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass

from .holes import HOLE
from .json_text import escaped
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tools import Tool


@dataclass(frozen=True)
class TaggedCalls:
    """A name between marks, then each argument between marks of its own.

    head has the hole {name}, argument the holes {key} and, where the template says it, {string} or {type}. Arguments
    that the tool's schema calls text, or that are no JSON, are text. `inner` is what the template puts around a value.
    has_cdata: a value may stand in XML's CDATA marks.
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
    has_cdata: bool = False
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
            if (yield from r.take_end(end)):
                return
            if start in self.also and not (yield from r.starts_with(head.partition("{")[0])):
                return

    def _read_call(self, r: CallReader, head: str) -> Steps[None]:
        parts = HOLE.split(head)
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
        parts = HOLE.split(self.argument.strip())
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
        if self.has_cdata and (yield from r.take("<![CDATA[")):
            ends = [f"]]>{self.value_end}"]
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
            return g.several(one, self.between, is_parallel)
        several = g.several(call, self.between, is_parallel)
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
        opening = g.literal(HOLE.sub(lambda hole: holes[hole[1]], self.argument) + self.inner)
        closing = self.inner + self.value_end
        choices = tool.schema_of(key).get("enum")
        if is_text and isinstance(choices, list):
            value = g.choice([g.literal(f"{choice}{closing}") for choice in choices])
        elif is_text or is_text is None:
            value = g.until(self.value_end)
        else:
            value = f"{g.schema(tool.schema_of(key))} {g.literal(closing)}"
        return f"{opening} {value} {g.literal(self.behind_value)}" if self.behind_value else f"{opening} {value}"

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        return None


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
