"""How batches are rounded to few shapes, so that few plans serve all. Plain integers."""

from __future__ import annotations

from .kv_cache import WINDOW, round_up


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
