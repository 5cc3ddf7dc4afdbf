"""Text that people or tools wrote, told apart from the template's own through everything a template does to it.

In such text every anchor, a character that a special token can't do without (`<`, `[`), is replaced by a private-use
twin, one for one. Whatever a template then cuts, joins or replaces, no special token's text can come out of it, since
a twin is not that character. For the template nothing changes: MarkedText compares, searches and splits as if twins
were anchors, so `'</think>' in content` and `content.split('</think>')` work on anybody's text.
After rendering the twins turn back, and their places are known. They are chosen for each rendering among the
private-use characters that occur nowhere in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, SupportsIndex

from markupsafe import Markup, escape

_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")


def private_characters(text: str) -> set[str]:
    """The characters of the private-use planes in a text."""
    return set(_PRIVATE.findall(text))


class Marks:
    """The twins of one rendering; `used` are private-use characters that its texts hold already."""

    def __init__(self, anchors: Collection[str], used: Collection[str]) -> None:
        free = (chr(code) for code in range(0xF0000, 0x10FFFF) if chr(code) not in used)
        self._pairs = tuple(zip(sorted(anchors), free))
        self._twins = re.compile(f"[{''.join(twin for _, twin in self._pairs)}]") if self._pairs else None

    def mark(self, text: str) -> str:
        """The text with twins in place of anchors."""
        for anchor, twin in self._pairs:
            text = text.replace(anchor, twin)
        return self.wrap(text)

    def wrap(self, text: str) -> str:
        """A text in which twins may stand already, as MarkedText if they do."""
        return MarkedText(text, self) if self._twins and self._twins.search(text) else text

    def restore(self, text: str) -> str:
        """The text with anchors in place of twins."""
        for anchor, twin in self._pairs:
            text = str.replace(text, twin, anchor)
        return text

    def positions(self, text: str) -> Iterator[int]:
        """Where twins stand in a text."""
        return (match.start() for match in self._twins.finditer(text)) if self._twins else iter(())


def join_marked(pieces: Iterable[object], separator: str = "") -> str:
    """The joined texts of the pieces, as MarkedText if one of them is."""
    texts = [str(piece) for piece in pieces]
    marks = next((text._marks for text in [separator, *texts] if isinstance(text, MarkedText)), None)
    joined = separator.join(texts)
    return joined if marks is None else marks.wrap(joined)


class MarkedText(str):
    """A string with twins that acts as if they were the characters they stand for.

    Operations look at the plain text and cut the marked one at the same places, which the twins don't move.
    """

    _marks: Marks

    def __new__(cls, text: str, marks: Marks) -> MarkedText:
        self = super().__new__(cls, text)
        self._marks = marks
        return self

    @cached_property
    def _plain(self) -> str:
        return self._marks.restore(self)

    def _part(self, start: int, end: int) -> str:
        return self._marks.wrap(str.__getitem__(self, slice(start, end)))

    def _parts(self, plain_parts: list[str], n_between: int) -> list[str]:
        """The marked texts of parts in order; n_between < 0: what lies between them is to be searched."""
        parts, position = [], 0
        for plain in plain_parts:
            start = position if n_between >= 0 else self._plain.index(plain, position)
            parts.append(self._part(start, start + len(plain)))
            position = start + len(plain) + max(n_between, 0)
        return parts

    def __str__(self) -> str:
        return self

    def __repr__(self) -> str:
        return self._marks.mark(repr(self._plain))

    def __html__(self) -> str:
        return Markup(str.__str__(self._marks.mark(str(escape(self._plain)))))

    def __hash__(self) -> int:
        return hash(self._plain)

    def __eq__(self, other: object) -> bool:
        return self._plain == self._other(other)

    def __ne__(self, other: object) -> bool:
        return self._plain != self._other(other)

    def __lt__(self, other: str) -> bool:
        return self._plain < self._other(other)

    def __le__(self, other: str) -> bool:
        return self._plain <= self._other(other)

    def __gt__(self, other: str) -> bool:
        return self._plain > self._other(other)

    def __ge__(self, other: str) -> bool:
        return self._plain >= self._other(other)

    def __contains__(self, part: object) -> bool:
        return self._other(part) in self._plain

    def __add__(self, other: str) -> str:
        return self._marks.wrap(str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return self._marks.wrap(str.__add__(other, self))

    def __mul__(self, times: SupportsIndex) -> str:
        return self._marks.wrap(str.__mul__(self, times))

    def __getitem__(self, index: SupportsIndex | slice) -> str:
        return self._marks.wrap(str.__getitem__(self, index))

    def __iter__(self) -> Iterator[str]:
        return iter([self._marks.wrap(char) for char in str.__iter__(self)])

    def _other(self, value: Any) -> Any:
        """What a template compares or searches, without twins."""
        if isinstance(value, tuple):
            return tuple(self._other(item) for item in value)
        return self._marks.restore(value) if isinstance(value, str) else value

    def startswith(self, *args: Any) -> bool:
        return self._plain.startswith(*map(self._other, args))

    def endswith(self, *args: Any) -> bool:
        return self._plain.endswith(*map(self._other, args))

    def find(self, *args: Any) -> int:
        return self._plain.find(*map(self._other, args))

    def rfind(self, *args: Any) -> int:
        return self._plain.rfind(*map(self._other, args))

    def index(self, *args: Any) -> int:
        return self._plain.index(*map(self._other, args))

    def rindex(self, *args: Any) -> int:
        return self._plain.rindex(*map(self._other, args))

    def count(self, *args: Any) -> int:
        return self._plain.count(*map(self._other, args))

    def strip(self, chars: str | None = None) -> str:
        rest = self._plain.lstrip(self._other(chars))
        start = len(self) - len(rest)
        return self._part(start, start + len(rest.rstrip(self._other(chars))))

    def lstrip(self, chars: str | None = None) -> str:
        return self._part(len(self) - len(self._plain.lstrip(self._other(chars))), len(self))

    def rstrip(self, chars: str | None = None) -> str:
        return self._part(0, len(self._plain.rstrip(self._other(chars))))

    def removeprefix(self, prefix: str) -> str:
        return self._part(len(self) - len(self._plain.removeprefix(self._other(prefix))), len(self))

    def removesuffix(self, suffix: str) -> str:
        return self._part(0, len(self._plain.removesuffix(self._other(suffix))))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._plain.split(self._other(sep), maxsplit), -1 if sep is None else len(sep))

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self._plain.rsplit(self._other(sep), maxsplit), -1 if sep is None else len(sep))

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._parts(self._plain.splitlines(True), 0)
        return lines if keepends else [line.rstrip("\r\n\v\f\x1c\x1d\x1e\x85\u2028\u2029") for line in lines]

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._parts(list(self._plain.partition(self._other(sep))), 0)
        return head, middle, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, middle, tail = self._parts(list(self._plain.rpartition(self._other(sep))), 0)
        return head, middle, tail

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return self._marks.wrap(str.replace(self, old, new, count))
        return join_marked(self.split(old, count), new)

    def upper(self) -> str:
        return self._marks.wrap(str.upper(self))

    def lower(self) -> str:
        return self._marks.wrap(str.lower(self))

    def title(self) -> str:
        return self._marks.wrap(str.title(self))

    def capitalize(self) -> str:
        return self._marks.wrap(str.capitalize(self))
