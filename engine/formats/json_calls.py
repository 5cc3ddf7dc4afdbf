"""Tool calls as JSON objects with a name and arguments, single or in lists: Hermes, Qwen, Llama, Cohere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from .json_text import pass_value, read_string, read_value
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tools import Tool


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
            if not self.end or (yield from r.take_end(self.end)):
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
        several = g.several(call, self.between, is_parallel)
        if self.is_list:
            opened, closed = self.start + self.inner + "[", "]" + self.inner + self.end
            return f"{g.literal(opened)} {several} {g.literal(closed)}"
        if self.is_many:
            return f"{g.literal(self.start + self.inner)} {several} {g.literal(self.inner + self.end)}"
        one = g.rule(f"{g.literal(self.start + self.inner)} {call} {g.literal(self.inner + self.end)}")
        return g.several(one, self.between, is_parallel)

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


def json_text(value: str) -> str:
    """What a JSON value says where it is a string, else its text."""
    if value.startswith('"'):
        return str(json.loads(value, strict=False))
    return "" if value == "null" else value
