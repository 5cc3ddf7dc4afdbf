"""MiniMax M3's calls: each argument is an element named by its key, and objects and lists are nested elements.

Every tag has a mark before it, so that text can hold tags of its own. A list is a run of `<item>` elements. What is
nested is collected and becomes JSON when its element ends; text at the top level streams.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .json_text import MAX_DEPTH, escaped
from .lark import LarkText
from .parser import CallReader
from .reader import Malformed, Steps
from .tagged_calls import as_json
from .tools import Tool


@dataclass(frozen=True)
class NestedCalls:
    """Calls between `<tool_call>` and its end, every tag with `mark` before it."""

    mark: str
    is_bare: bool = False
    is_always: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        return (f"{self.mark}<tool_call>",)

    def read(self, r: CallReader, start: str) -> Steps[None]:
        is_first = True
        while True:
            yield from r.skip_space()
            if not is_first and (yield from r.take_end(f"{self.mark}</tool_call>")):
                return
            is_first = False
            yield from r.expect(f'{self.mark}<invoke name="')
            name, _ = yield from r.until('">', limit=200)
            r.open_call(name)
            r.arguments("{")
            yield from self._read_arguments(r, r.tools.get(name))
            r.arguments("}")

    def _read_arguments(self, r: CallReader, tool: Tool | None) -> Steps[None]:
        is_first = True
        while True:
            yield from r.skip_space()
            if (yield from r.take(f"{self.mark}</invoke>")):
                return
            key = yield from self._open_tag(r)
            r.arguments(("" if is_first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            is_first = False
            is_text = tool.is_text(key) if tool is not None else None
            if is_text:
                r.arguments('"')
                yield from r.stream(lambda text: r.arguments(escaped(text)), f"{self.mark}</{key}>")
                r.arguments('"')
            else:
                r.arguments(json.dumps((yield from self._read_element(r, key, 0)), ensure_ascii=False))

    def _open_tag(self, r: CallReader) -> Steps[str]:
        yield from r.expect(f"{self.mark}<")
        key, _ = yield from r.until(">", limit=1000)
        return key

    def _read_element(self, r: CallReader, key: str, depth: int) -> Steps[Any]:
        """The value of an element whose tag has been read."""
        if depth > MAX_DEPTH:
            raise Malformed("elements nested too deeply")
        close = f"{self.mark}</{key}>"
        text, end = yield from r.until(close, f"{self.mark}<", limit=1 << 24)
        if end == close:
            return json.loads(as_json(text, None))
        children: list[tuple[str, Any]] = []
        r.at -= len(end)
        while not (yield from r.take(close)):
            yield from r.skip_space()
            name = yield from self._open_tag(r)
            children.append((name, (yield from self._read_element(r, name, depth + 1))))
            yield from r.skip_space()
        return [value for _, value in children] if all(n == "item" for n, _ in children) else dict(children)

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        calls = g.choice([g.rule(self._lark_call(g, tool)) for tool in tools])
        several = g.several(calls, "", is_parallel)
        return f"{g.literal(f'{self.mark}<tool_call>' + chr(10))} {several} {g.literal(f'{self.mark}</tool_call>')}"

    def _lark_call(self, g: LarkText, tool: Tool) -> str:
        parts = [g.literal(f'{self.mark}<invoke name="{tool.name}">')]
        for key in tool.properties:
            element = self._lark_element(g, key, tool.schema_of(key), 0)
            parts.append(element if key in tool.required else f"{element}?")
        return " ".join([*parts, g.literal(f"{self.mark}</invoke>\n")])

    def _lark_element(self, g: LarkText, key: str, schema: Any, depth: int) -> str:
        kind = schema.get("type") if isinstance(schema, dict) else None
        opening, closing = g.literal(f"{self.mark}<{key}>"), g.literal(f"{self.mark}</{key}>")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if kind == "object" and isinstance(properties, dict) and depth < 8:
            inner = " ".join(
                self._lark_element(g, name, item, depth + 1) + ("" if name in schema.get("required", ()) else "?")
                for name, item in properties.items()
            )
            return g.rule(" ".join(part for part in (opening, inner, closing) if part))
        if kind == "array" and depth < 8:
            item = self._lark_element(g, "item", schema.get("items", {}), depth + 1)
            return g.rule(f"{opening} {item}* {closing}")
        if kind in ("integer", "number", "boolean", "null"):
            return g.rule(f"{opening} {g.schema(schema)} {closing}")
        return g.rule(f"{opening} {g.until(f'{self.mark}</{key}>')}")

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        return None
