"""Calls in notations of their own: Gemma 4's, and Python's as LFM2 and Llama write it.

Arguments are translated to JSON while they come. Both are `name`, an opening bracket, keys with values, a closing one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .json_text import MAX_DEPTH, escaped
from .lark import LarkText, quoted
from .parser import CallReader
from .reader import Malformed, Steps
from .tools import Tool

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_QUOTES = ("'", '"')
_GEMMA_QUOTE = '<|"|>'


@dataclass(frozen=True)
class LooseCalls:
    """Calls of Gemma 4 (`call:name{key:value}`, texts between `<|"|>`) or, with is_python, `[name(key='value')]`."""

    start: str
    end: str
    is_python: bool = False
    quote: str = _GEMMA_QUOTE
    is_bare: bool = False
    is_always: bool = False

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.start,)

    def read(self, r: CallReader, start: str) -> Steps[None]:
        yield from r.skip_space()
        is_list = self.is_python and (yield from r.take("["))
        while True:
            yield from r.skip_space()
            if not self.is_python:
                yield from r.expect("call:")
            name, _ = yield from r.until("(" if self.is_python else "{", limit=200)
            if not name.strip() or not all(char.isalnum() or char in "_-." for char in name.strip()):
                raise Malformed("expected the name of a tool")
            r.open_call(name.strip())
            yield from self._read_pairs(r, ")" if self.is_python else "}", 0)
            yield from r.skip_space()
            if not (is_list and (yield from r.take(","))):
                break
        if is_list:
            yield from r.take("]")
            yield from r.skip_space()
        if not (yield from r.take_end(self.end)):
            raise Malformed("expected the end of the calls")

    def _read_pairs(self, r: CallReader, close: str, depth: int) -> Steps[None]:
        r.arguments("{")
        is_first = True
        while not (yield from self._at_close(r, close, is_first)):
            if not is_first:
                r.arguments(", ")
            is_first = False
            quote = yield from self._quote(r)
            if quote:
                r.at += len(quote)
                yield from self._read_text(r, quote)
            else:
                mark = "=" if close == ")" else ":"
                key, _ = yield from r.until(mark, limit=1000)
                r.at -= 1
                r.arguments(json.dumps(key.strip(), ensure_ascii=False))
            yield from r.skip_space()
            yield from r.expect("=" if close == ")" else ":")
            r.arguments(": ")
            yield from self._read_value(r, depth + 1)
        r.arguments("}")

    def _at_close(self, r: CallReader, close: str, is_first: bool) -> Steps[bool]:
        yield from r.skip_space()
        if not is_first and (yield from r.take(",")):
            yield from r.skip_space()
        elif not is_first and not (yield from r.starts_with(close)):
            raise Malformed("expected a comma or the end")
        return (yield from r.take(close))

    def _read_value(self, r: CallReader, depth: int) -> Steps[None]:
        if depth > MAX_DEPTH:
            raise Malformed("values nested too deeply")
        yield from r.skip_space()
        quote = yield from self._quote(r)
        if quote:
            r.at += len(quote)
            yield from self._read_text(r, quote)
        elif (yield from r.take("{")):
            yield from self._read_pairs(r, "}", depth)
        elif (yield from r.take("[")):
            r.arguments("[")
            is_first = True
            while not (yield from self._at_close(r, "]", is_first)):
                if not is_first:
                    r.arguments(", ")
                is_first = False
                yield from self._read_value(r, depth + 1)
            r.arguments("]")
        else:
            yield from self._read_scalar(r)

    def _read_scalar(self, r: CallReader) -> Steps[None]:
        start = r.at
        while (char := (yield from r.peek())) and (char.isalnum() or char in "+-._"):
            r.at += 1
        text = r.text[start : r.at]
        try:
            value = _WORDS[text] if text in _WORDS else text
            json.loads(value)
        except ValueError:
            raise Malformed(f"{text!r} is no value") from None
        r.arguments(value)

    def _quote(self, r: CallReader) -> Steps[str]:
        for quote in _QUOTES if self.is_python else (_GEMMA_QUOTE, '"'):
            if (yield from r.starts_with(quote)):
                return quote
        return ""

    def _read_text(self, r: CallReader, quote: str) -> Steps[None]:
        r.arguments('"')
        if quote == _GEMMA_QUOTE:
            yield from r.stream(lambda text: r.arguments(escaped(text)), quote)
        else:
            while (yield from r.stream(lambda text: r.arguments(escaped(text)), quote, "\\")) == "\\":
                char = yield from r.peek()
                r.at += len(char)
                r.arguments(escaped(_ESCAPES.get(char, "\\" + char)))
        r.arguments('"')

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        call = g.choice([g.rule(self._lark_call(g, tool)) for tool in tools])
        if self.is_python:
            several = g.several(call, ', ', is_parallel)
            return f"{g.literal(self.start + '[')} {several} {g.literal(']' + self.end)}"
        one = g.rule(f"{g.literal(self.start)} {call} {g.literal(self.end)}")
        return g.several(one, "", is_parallel)

    def _lark_call(self, g: LarkText, tool: Tool) -> str:
        opening, closing, mark = ("(", ")", "=") if self.is_python else ("{", "}", ":")
        separator = ", " if self.is_python else ","
        head = g.literal(("" if self.is_python else "call:") + tool.name + opening)
        required = [g.rule(self._lark_pair(g, tool, key, mark)) for key in tool.properties if key in tool.required]
        others = [g.rule(self._lark_pair(g, tool, key, mark)) for key in tool.properties if key not in tool.required]
        comma = g.literal(separator)
        pairs = f" {comma} ".join(required)
        if required:
            pairs += "".join(f" ({comma} {pair})?" for pair in others)
        elif others:  # any run of them that keeps their order
            behind = [f" ({comma} {pair})?" for pair in others]
            runs = [pair + "".join(behind[k + 1 :]) for k, pair in enumerate(others)]
            pairs = f"({' | '.join(runs)})?"
        return " ".join(part for part in (head, pairs, g.literal(closing)) if part)

    def _lark_pair(self, g: LarkText, tool: Tool, key: str, mark: str) -> str:
        schema = tool.schema_of(key)
        choices = schema.get("enum")
        if isinstance(choices, list) and all(isinstance(choice, str) for choice in choices):
            value = g.choice([g.literal(self._quoted(choice)) for choice in choices])
        else:
            value = self._lark_value(g, schema)
        return f"{g.literal(key + mark)} {value}"

    def _quoted(self, text: str) -> str:
        return repr(text) if self.is_python else f"{_GEMMA_QUOTE}{text}{_GEMMA_QUOTE}"

    def _lark_value(self, g: LarkText, schema: Mapping[str, Any]) -> str:
        """A value that a schema describes; numbers are as it says, of all else only the type is."""
        kind = schema.get("type")
        if kind in ("integer", "number"):
            return g.schema(schema)
        true, false, null = ("True", "False", "None") if self.is_python else ("true", "false", "null")
        simple = {"boolean": g.rule(f"{g.literal(true)} | {g.literal(false)}"), "null": g.literal(null)}
        simple["string"] = self._lark_text(g)
        if isinstance(kind, str) and kind in simple:
            return simple[kind]
        comma, key = g.literal("," if not self.is_python else ", "), self._lark_key(g)
        item = "any_value"
        listed = g.rule(f"{g.literal('[')} ({item} ({comma} {item})*)? {g.literal(']')}")
        pair = g.rule(f"{key} {item}")
        mapped = g.rule(f"{g.literal('{')} ({pair} ({comma} {pair})*)? {g.literal('}')}")
        number = g.terminal(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?")
        g.define(item, " | ".join([number, *simple.values(), listed, mapped]))
        return {"array": listed, "object": mapped}.get(str(kind), item)

    def _lark_text(self, g: LarkText) -> str:
        if self.is_python:
            return g.terminal(r"'([^'\\\n]|\\[n'\\])*'")
        return g.rule(f"{g.literal(_GEMMA_QUOTE)} {g.until(_GEMMA_QUOTE)}")

    def _lark_key(self, g: LarkText) -> str:
        key = r"'[^'\\\n]+': " if self.is_python else "[a-zA-Z0-9_]+" + quoted(":")
        return g.terminal(key)

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        if not self.is_python:
            return None
        texts = []
        for name, arguments in calls:
            values = json.loads(arguments)
            pairs = values.items() if isinstance(values, dict) else ()
            texts.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in pairs)})")
        return f"{self.start}[{', '.join(texts)}]{self.end}"
