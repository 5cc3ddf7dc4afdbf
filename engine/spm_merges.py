"""Merge rules of a SentencePiece vocabulary, which a GGUF file leaves out.

SentencePiece joins the neighbouring pieces whose union has the best score. As merge rules: every cut of every token
into two known tokens, the best union first. The cuts are found by prefix hashes in numpy, because a vocabulary of
262k tokens has 1.4 million of them; a hash is 64 bits wide, so a false hit is no practical matter.
Knows only texts and scores; which tokens may be joined is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_CHAR_MIX = np.uint64(0xD6E8FEB86659FD93)
_SLOT_MIXES = tuple(np.uint64(mix) for mix in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x9FB21C651E98DF25))


def merges_by_score(tokens: Sequence[str], scores: NDArray[np.float32]) -> list[tuple[str, str]]:
    """Return the merge rules of `tokens`, best first; of equal ones the earlier token's, then the earlier cut's.

    `tokens` holds no text twice; `scores` has one entry for each.
    """
    with np.errstate(over="ignore"):
        groups = list(_by_length(tokens))
        find = _TokenIndex.of(groups, len(tokens))
        found = [cuts for group in groups for cuts in group.cuts(find)]
    if not found:
        return []
    product, n_left, left, right = np.concatenate(found, axis=1)
    order = np.lexsort((n_left, product, -scores[product]))
    texts = np.array(tokens, dtype=object)
    return list(zip(texts[left[order]].tolist(), texts[right[order]].tolist(), strict=True))


@dataclass(frozen=True)
class _Group:
    """The tokens of one length, with the hash of each of their prefixes."""

    n_chars: int
    tokens: Indices
    prefixes: Hashes

    def cuts(self, index: _TokenIndex) -> Iterator[Indices]:
        """Yield (token, characters on the left, left token, right token) for the cuts into two known tokens."""
        power = np.uint64(1)
        whole = self.prefixes[:, -1]
        for n_left in range(self.n_chars - 1, 0, -1):
            power = power * _BASE
            prefix = self.prefixes[:, n_left - 1]
            left = index.find(prefix)
            rows = np.flatnonzero(left >= 0)
            right = index.find(whole[rows] - prefix[rows] * power)
            rows, right = rows[right >= 0], right[right >= 0]
            if len(rows):
                yield np.stack([self.tokens[rows], np.full(len(rows), n_left), left[rows], right])


def _by_length(tokens: Sequence[str]) -> Iterator[_Group]:
    n_chars = np.fromiter(map(len, tokens), np.int64, len(tokens))
    starts = np.cumsum(n_chars) - n_chars
    text = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32)
    mixed = (text.astype(np.uint64) + np.uint64(1)) * _CHAR_MIX
    for length in np.unique(n_chars[n_chars > 0]).tolist():
        members = np.flatnonzero(n_chars == length)
        prefixes = mixed[starts[members][:, None] + np.arange(length)]
        for k in range(1, length):
            prefixes[:, k] += prefixes[:, k - 1] * _BASE
        yield _Group(length, members, prefixes)


class _TokenIndex:
    """Finds a token by its hash: tables with one token a slot; what a table has no room for goes into the next."""

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self._tables: list[tuple[NDArray[np.int32], np.uint64, np.uint64]] = []
        rest = np.arange(len(hashes), dtype=np.int32)
        for mix in _SLOT_MIXES * 4:
            if not len(rest):
                break
            n_bits = len(rest).bit_length() + 2
            table = np.full(1 << n_bits, -1, np.int32)
            shift = np.uint64(64 - n_bits)
            slots = (hashes[rest] * mix) >> shift
            table[slots] = rest
            self._tables.append((table, mix, shift))
            rest = rest[table[slots] != rest]

    @classmethod
    def of(cls, groups: Sequence[_Group], n_tokens: int) -> _TokenIndex:
        hashes = np.zeros(n_tokens, np.uint64)
        for group in groups:
            hashes[group.tokens] = group.prefixes[:, -1]
        return cls(hashes)

    def find(self, hashes: Hashes) -> Indices:
        """Return the token of each hash, -1 where there is none."""
        found = np.full(len(hashes), -1, np.int64)
        for table, mix, shift in self._tables:
            token = table[(hashes * mix) >> shift]
            hit = (token >= 0) & (self._hashes[token] == hashes)
            found[hit] = token[hit]
        return found
