"""JSON as it comes: values are passed on character for character while they are read.

Brackets and strings are followed; what stands between them is the caller's to judge.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from .reader import SPACE, Malformed, Reader, Steps

_ENDS_SCALAR = SPACE + ",]}"
MAX_DEPTH = 200


def pass_value(r: Reader, sink: Callable[[str], None]) -> Steps[None]:
    """Read one JSON value and give its text to the sink in pieces."""
    depth = 0
    is_in_string = is_escaped = False
    start = r.at
    while True:
        if r.at >= len(r.text):
            if r.at > start:
                sink(r.text[start : r.at])
                start = r.at
            if not (yield from r.more()):
                raise Malformed("the text ended within a JSON value")
        char = r.text[r.at]
        if is_in_string:
            is_escaped, is_in_string = (not is_escaped and char == "\\"), is_escaped or char != '"'
        elif char == '"':
            is_in_string = True
        elif char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                raise Malformed("JSON nested too deeply")
        elif char in "}]":
            depth -= 1
        elif depth == 0:  # a number or a word
            yield from _pass_scalar(r, start, sink)
            return
        r.at += 1
        if depth == 0 and not is_in_string:
            sink(r.text[start : r.at])
            return
        if depth < 0:
            raise Malformed("a bracket that was never opened")


def _pass_scalar(r: Reader, start: int, sink: Callable[[str], None]) -> Steps[None]:
    while (char := (yield from r.peek())) and char not in _ENDS_SCALAR:
        r.at += 1
    text = r.text[start : r.at]
    try:
        json.loads(text)
    except ValueError:
        raise Malformed(f"{text!r} is no JSON value") from None
    sink(text)


def read_value(r: Reader) -> Steps[str]:
    """The text of one JSON value."""
    pieces: list[str] = []
    yield from pass_value(r, pieces.append)
    return "".join(pieces)


def read_string(r: Reader) -> Steps[str]:
    """A JSON string, decoded."""
    if (yield from r.peek()) != '"':
        raise Malformed("expected a JSON string")
    text = yield from read_value(r)
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise Malformed(f"{text!r} is no JSON string") from None


def escaped(text: str) -> str:
    """Text as it stands within a JSON string; pieces of a text may be escaped one by one."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
