"""Tool calls by name between marks, with JSON arguments behind it: DeepSeek, Kimi K2, Mistral, Functionary, Solar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .holes import HOLE
from .json_text import pass_value
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tools import Tool


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
        if tail and not (yield from r.take_end(tail)):
            raise Malformed("expected the end of a call")
        r.used()
        yield from r.skip_space()
        if not self.start:
            return True
        if not self.end:
            return not (yield from r.starts_with(self.head.partition("{")[0]))
        return (yield from r.take_end(self.end))

    def _read_head(self, r: CallReader, head: str) -> Steps[tuple[str, str | None]]:
        values: dict[str, str] = {}
        parts = HOLE.split(head)
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
                parts, others = HOLE.split(alternatives[end]), []
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
        several = g.several(call, self.between, is_parallel)
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


def _end_of_name(head: str) -> str:
    return HOLE.split(head)[2]
