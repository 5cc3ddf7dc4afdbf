"""How batches are rounded to few shapes, so that few plans serve all. Plain integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .forward import PlanShape
from .kv_cache import WINDOW, round_up


class Stretch(Protocol):
    """Tokens of one slot."""

    @property
    def slot(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def ids(self) -> Sequence[int]: ...


class Rounding:
    """The shapes of batches on a cache of n_slots slots with n_rows rows each, prompts by at most max_chunk tokens.

    `can_move` says that a plan serves all slots and lengths; `on_cpus` that each slot that takes part costs what its
    token costs.
    """

    def __init__(self, n_rows: int, n_slots: int, max_chunk: int, *, on_cpus: bool) -> None:
        self.can_move = True
        self._n_rows, self._n_slots, self._max_chunk, self._on_cpus = n_rows, n_slots, max_chunk, on_cpus

    def decode(self, places: Sequence[Stretch]) -> PlanShape:
        """One token of each place."""
        slot0, n_seq = self._group(places)
        return PlanShape(1, n_seq, slot0, self.window(max(p.start for p in places) + 1, 1), n_seq)

    def prefill(self, place: Stretch, n_out: int, lane: int = 0) -> PlanShape:
        """A chunk of one prompt."""
        n = padded_length(len(place.ids), self._max_chunk)
        return PlanShape(n, 1, place.slot, self.window(place.start + len(place.ids), n), n_out, lane)

    def several(self, places: Sequence[Stretch]) -> PlanShape:
        """Chunks of prompts in neighbouring slots, padded to the longest; logits of one token of each slot."""
        n = padded_length(max(len(p.ids) for p in places), self._max_chunk)
        slot0, n_seq = self._group(places)
        return PlanShape(n, n_seq, slot0, self.window(max(p.start + len(p.ids) for p in places), n), n_seq)

    def key(self, shape: PlanShape) -> PlanShape:
        """The shape that a plan for this one is made for."""
        return shape._replace(slot0=0, n_kv=self._n_rows) if self.can_move else shape

    def window(self, end: int, n_tokens: int) -> int:
        """Rows that attention sees, see window_length."""
        return window_length(end, n_tokens, self._n_rows, can_move=self.can_move)

    def _group(self, places: Sequence[Stretch]) -> tuple[int, int]:
        first, last = places[0].slot, places[-1].slot
        if self.can_move and self._on_cpus:
            return first, last - first + 1
        return slot_group(first, last, self._n_slots, can_move=self.can_move)


def padded_length(n: int, limit: int) -> int:
    """The length that a chunk of n tokens is padded to, so that few lengths serve all."""
    if n <= 8:
        return n
    step = 8 if n <= 64 else 16 if n <= 128 else 32 if n <= 256 else 64
    return min(round_up(n, step), limit) if limit >= n else n


def window_length(end: int, n_tokens: int, n_rows: int, *, can_move: bool) -> int:
    """Rows that attention sees so that position `end - 1` is among them.

    A multiple of 256; where each new length is a new plan, a coarser one for chunks of a long prompt.
    """
    step = WINDOW
    if n_tokens > 1 and not can_move:
        while step * 8 < end:
            step *= 2
    return min(round_up(end, step), n_rows)


def slot_group(first: int, last: int, n_slots: int, *, can_move: bool) -> tuple[int, int]:
    """A group of neighbouring slots that holds first to last, of one of few sizes: (slot0, n_seq).

    Where each place is a new plan, groups are aligned.
    """
    if can_move:
        n = min(group_size(last - first + 1), n_slots)
        return min(first, n_slots - n), n
    n = 1
    while first // n != last // n:
        n *= 2
    slot0 = first // n * n
    return slot0, min(n, n_slots - slot0)


def group_size(n: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... at or above n."""
    power = 1 << (n - 1).bit_length()
    return power * 3 // 4 if power >= 4 and n <= power * 3 // 4 else power
