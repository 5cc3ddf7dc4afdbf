"""Text that comes in pieces, read by parsers that are written as if all of it were there.

A parser is a generator that yields where it needs more text. What it decides depends on the text alone, never on how
it was cut: it waits while a longer text could change its mind. One reader per answer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
SPACE = " \t\r\n"


class Malformed(Exception):
    """The text is not what it began to be; what has not been used yet is plain text."""


class Reader:
    """The text so far and a place in it. Reading moves the place; where the text ends too early it raises Malformed."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_ended = False

    def more(self) -> Steps[bool]:
        """Wait for more text; False if there is none to come."""
        before = len(self.text)
        while len(self.text) == before and not self.is_ended:
            yield
        return len(self.text) > before

    def has(self, n: int) -> Steps[bool]:
        """Whether n more characters are there."""
        while len(self.text) - self.at < n:
            if not (yield from self.more()):
                return False
        return True

    def starts_with(self, wanted: str) -> Steps[bool]:
        """Whether the text goes on with this; waits until that is sure, and moves nothing."""
        while True:
            there = self.text[self.at : self.at + len(wanted)]
            if not wanted.startswith(there):
                return False
            if len(there) == len(wanted):
                return True
            if not (yield from self.more()):
                return False

    def take(self, wanted: str) -> Steps[bool]:
        """Move behind this text if it is there."""
        is_there = yield from self.starts_with(wanted)
        if is_there:
            self.at += len(wanted)
        return is_there

    def take_end(self, wanted: str) -> Steps[bool]:
        """Move behind this mark, or behind as much of it as was written before the text broke off."""
        if (yield from self.take(wanted)):
            return True
        if self.is_ended and wanted.startswith(self.text[self.at :]):
            self.at = len(self.text)
            return True
        return False

    def expect(self, wanted: str) -> Steps[None]:
        """Move behind this text, which must be there."""
        if not (yield from self.take(wanted)):
            raise Malformed(f"expected {wanted!r}")

    def peek(self) -> Steps[str]:
        """The next character, or nothing at the end."""
        yield from self.has(1)
        return self.text[self.at : self.at + 1]

    def skip_space(self) -> Steps[None]:
        """Move behind white space."""
        while (char := (yield from self.peek())) and char in SPACE:
            self.at += 1

    def until(self, *ends: str, limit: int = 10_000) -> Steps[tuple[str, str]]:
        """The text up to the first of these ends, and that end; the place is then behind it."""
        pieces: list[str] = []
        end = yield from self.stream(pieces.append, *ends)
        text = "".join(pieces)
        if len(text) > limit:
            raise Malformed(f"more than {limit} characters before {ends[0]!r}")
        return text, end

    def stream(self, sink: Callable[[str], None], *ends: str) -> Steps[str]:
        """Give the text up to the first of these ends to the sink as it comes; return the end, and move behind it."""
        while True:
            at, end, safe = first_of(self.text, self.at, ends)
            if safe > self.at:
                sink(self.text[self.at : safe])
                self.at = safe
            if end:
                self.at = at + len(end)
                return end
            if not (yield from self.more()):
                sink(self.text[self.at :])
                self.at = len(self.text)
                raise Malformed(f"the text ended before {ends[0]!r}")


def first_of(text: str, start: int, ends: Sequence[str]) -> tuple[int, str, int]:
    """Where the first of some texts starts and which it is ("" if none is sure), and how far none of them can start.

    Of two that start at one place the longer counts, once it is sure that the shorter is not its beginning.
    """
    found = [(at, -len(end), end) for end in ends if (at := text.find(end, start)) >= 0]
    begun = min((_begun_at(text, start, end) for end in ends), default=len(text))
    if not found:
        return begun, "", begun
    at, _, end = min(found)
    return (at, end, at) if at < begun else (begun, "", begun)


def _begun_at(text: str, start: int, end: str) -> int:
    longest = min(len(end) - 1, len(text) - start)
    if text.find(end[0], len(text) - longest) < 0:
        return len(text)
    for n in range(longest, 0, -1):
        if text.endswith(end[:n]):
            return len(text) - n
    return len(text)
