"""Finds special tokens in a text, at once and only where they may stand.

Control tokens count only inside the given regions (a user's text must not forge a turn); user-defined tokens count
everywhere, also across regions, as in llama.cpp and in the models' own tokenizers. At each place the longest wins.
Knows texts and ids, no vocabulary kinds. Immutable.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

Region = tuple[int, int]


class SpecialTokens:
    """Cuts texts at special tokens; `strips_after` drops the white space behind the tokens of these texts."""

    def __init__(
        self,
        control: Mapping[str, int],
        user_defined: Mapping[str, int],
        strips_after: frozenset[str] = frozenset(),
    ) -> None:
        self._ids = {**user_defined, **control}
        self._control = frozenset(control)
        self._strips_after = strips_after
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[:2], set()).add(len(text))
        for head in lengths:
            if head[0] in self._ids:
                lengths[head].add(1)
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        heads = sorted(lengths, key=len, reverse=True)
        self._heads = re.compile("|".join(map(re.escape, heads))) if heads else None

    def cut(self, text: str, regions: Sequence[Region]) -> Iterator[str | int]:
        """Yield stretches of plain text and ids of special tokens in order; `regions` are sorted and don't touch."""
        begin = position = 0
        while self._heads is not None and (head := self._heads.search(text, position)):
            found = self._token_at(text, head.start(), self._lengths[head.group()], regions)
            if found is None:
                position = head.start() + 1
                continue
            if head.start() > begin:
                yield text[begin : head.start()]
            yield self._ids[found]
            begin = position = self._end(text, head.start() + len(found), found)
        if begin < len(text):
            yield text[begin:]

    def _token_at(
        self, text: str, start: int, lengths: Sequence[int], regions: Sequence[Region]
    ) -> str | None:
        for length in lengths:
            candidate = text[start : start + length]
            if candidate not in self._ids or len(candidate) < length:
                continue
            if candidate not in self._control or _is_within(start, start + length, regions):
                return candidate
        return None

    def _end(self, text: str, end: int, found: str) -> int:
        if found in self._strips_after:
            while end < len(text) and text[end].isspace():
                end += 1
        return end


def _is_within(start: int, end: int, regions: Sequence[Region]) -> bool:
    k = bisect_right(regions, start, key=lambda region: region[0]) - 1
    return k >= 0 and end <= regions[k][1]
