"""What slots and files hold of earlier prompts, and what a new prompt takes of it.

Pure Python over token ids: rows of the cache are moved by a `SlotRows`. Engine thread only.
A prompt goes to the free slot that loses least by it and gets the longest beginning that anyone holds, its own slot, a
running one or a file; a prompt's last token is always evaluated anew.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .prefix_tree import Ids, PrefixTree

# Fewer tokens are evaluated again rather than copied, and are no loss.
MIN_SHARED = 64
# A beginning of at least so many tokens goes to disk when so many prompts have left it for another continuation.
MIN_STORED = 256
N_PARTINGS = 2

_NOTHING: Ids = np.empty(0, np.int32)


class SlotRows(Protocol):
    """Moves rows of the cache, on all ranks."""

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        """Copy rows from one slot to another."""

    def load(self, key: str, slot: int, start: int, stop: int) -> bool:
        """Put rows of a file into a slot; False where the file cannot be used."""

    def save(self, slot: int, ids: Ids) -> None:
        """Begin to write the rows of these tokens, which the slot holds, to a file."""

    def saved(self) -> Mapping[str, Ids]:
        """Files that have become ready since the last call."""

    @property
    def files(self) -> tuple[int, int]:
        """The number of files and their bytes."""


@dataclass
class PrefixCounts:
    """Counts since the start."""

    n_lookups: int = 0
    n_hits: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
    n_copies: int = 0
    n_evictions: int = 0
    n_files_loaded: int = 0


class PrefixCache:
    """Slots by what they hold. With `is_on` False nothing is ever used again."""

    def __init__(
        self,
        n_slots: int,
        rows: SlotRows,
        *,
        is_on: bool = True,
        min_shared: int = MIN_SHARED,
        min_stored: int = MIN_STORED,
    ) -> None:
        self.is_on = is_on
        self.counts = PrefixCounts()
        self.min_shared, self._min_stored = min_shared, min_stored
        self._rows = rows
        self._tree = PrefixTree()
        self._last_used = [0] * n_slots
        self._clock = 0

    def n_held(self, slot: int) -> int:
        """Tokens that a slot is known to hold."""
        return self._tree.length(slot)

    @property
    def files(self) -> tuple[int, int]:
        """The number of files and their bytes."""
        return self._rows.files

    def place(self, ids: Ids, free: Collection[int], *, reuses: bool = True) -> tuple[int, int, int]:
        """The free slot for a prompt, how many of its tokens that has now, and how many to store when it has them."""
        self._take_files()
        common = self._tree.common(ids) if reuses and self.is_on else {}
        slot = self._choose(common, free)
        n_store = self._worth_storing(ids, common)
        n_cached = self._bring(slot, ids, common)
        lost = self._tree.length(slot) - min(common.get(slot, 0), len(ids))
        self.counts.n_evictions += lost >= self.min_shared
        self._tree.hold(slot, ids[:n_cached])
        self._clock += 1
        self._last_used[slot] = self._clock
        self.counts.n_lookups += 1
        self.counts.n_hits += n_cached > 0
        self.counts.n_prompt_tokens += len(ids)
        self.counts.n_reused_tokens += n_cached
        return slot, n_cached, n_store

    def take(self, slot: int, ids: Ids, source: int) -> int:
        """Copy what another slot has more of a prompt than its own; how many of its tokens that has then."""
        n_own = self._tree.length(slot)
        n = min(self._tree.common(ids).get(source, 0), len(ids) - 1)
        if n <= n_own:
            return n_own
        self._rows.copy(source, slot, n_own, n)
        self._tree.hold(slot, ids[:n])
        self.counts.n_copies += 1
        self.counts.n_hits += n_own == 0
        self.counts.n_reused_tokens += n - n_own
        return n

    def hold(self, slot: int, ids: Ids) -> None:
        """The rows of these tokens are in the slot, and no others."""
        self._tree.hold(slot, ids)

    def forget(self, slot: int) -> None:
        """Nothing in the slot can be used."""
        self._tree.drop(slot)

    def forget_slots(self) -> None:
        """Nothing in any slot can be used."""
        for slot in range(len(self._last_used)):
            self._tree.drop(slot)

    def store(self, slot: int, ids: Ids) -> None:
        """Write the beginning of a slot to disk."""
        self._rows.save(slot, ids)

    def _take_files(self) -> None:
        if self.is_on:
            for key, ids in self._rows.saved().items():
                self._tree.hold(key, ids)

    def _choose(self, common: Mapping[Hashable, int], free: Collection[int]) -> int:
        """The free slot that keeps most where hardly anything is lost, else at least half of it; else the oldest."""

        def n_lost(slot: int) -> int:
            return self._tree.length(slot) - common.get(slot, 0)

        for limit in ("little", "half"):
            fitting = [
                s for s in free
                if (n_lost(s) < self.min_shared if limit == "little" else n_lost(s) <= common.get(s, 0))
            ]  # fmt: skip
            if fitting:
                return max(fitting, key=lambda s: (common.get(s, 0), -n_lost(s), -s))
        return min(free, key=lambda s: (self._last_used[s], s))

    def _bring(self, slot: int, ids: Ids, common: Mapping[Hashable, int]) -> int:
        """Fill the slot from whoever holds much more of this prompt; how many of its tokens it has then."""
        most = len(ids) - 1
        n_own = min(common.get(slot, 0), most)
        others = ((min(n, most), isinstance(h, int), h) for h, n in common.items() if h != slot)
        for n, is_slot, holder in sorted(others, key=lambda other: other[:2], reverse=True):
            if n - n_own < self.min_shared:
                break
            if is_slot:
                assert isinstance(holder, int), "slots are numbers"
                self._rows.copy(holder, slot, n_own, n)
                self.counts.n_copies += 1
                return n
            if self._rows.load(str(holder), slot, n_own, n):
                self.counts.n_files_loaded += 1
                return n
            self._tree.drop(holder)
        return n_own

    def _worth_storing(self, ids: Ids, common: Mapping[Hashable, int]) -> int:
        """How much of this prompt is a beginning that many share and no file has."""
        depth = max(common.values(), default=0)
        if not self.min_shared <= depth < len(ids) or self._tree.part(ids[:depth]) < N_PARTINGS:
            return 0
        in_files = max((n for h, n in common.items() if isinstance(h, str)), default=0)
        return depth if depth >= self._min_stored and depth - in_files >= self.min_shared else 0
