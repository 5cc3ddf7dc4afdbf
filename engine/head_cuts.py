"""Attention heads dealt to ranks: query heads with the key/value heads that they attend with.

ggml's grouped attention lets query head h use key/value head h // (n_head // n_head_kv), so every
local key/value head must serve equally many local query heads; where a run of heads is not so
regular by itself, a key/value head is held more than once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .balance import Span, best_cuts, deal_spans

# A key/value head costs its weights and its cache, a query head only its weights.
_KV_COST = 2


def head_cuts(n_head: int, n_head_kv: int, head_unit: int, shares: Sequence[float]) -> tuple[Span, ...]:
    """The run of query heads of each rank; cuts fall on multiples of `head_unit`.

    Whole groups are dealt by share while there is one for every rank. Else groups are divided for
    the least cost of the fullest rank, which may leave ranks without heads.
    """
    group = n_head // n_head_kv
    active = [rank for rank, share in enumerate(shares) if share > 0]
    whole = math.lcm(head_unit, group)
    if n_head // whole >= len(active):
        return deal_spans(n_head, whole, shares)

    def n_heads(part: int, start: int, stop: int) -> float:
        return (stop - start) * head_unit / shares[active[part]]

    def n_kv(start: int, stop: int) -> int:
        return len(kv_heads_of((start * head_unit, stop * head_unit), group))

    def cost(part: int, start: int, stop: int) -> float:
        return ((stop - start) * head_unit + _KV_COST * n_kv(start, stop)) / shares[active[part]]

    def tie(part: int, start: int, stop: int) -> tuple[float, ...]:
        return start == stop, n_kv(start, stop), (stop - start) ** 2 / shares[active[part]]

    found = best_cuts(n_head // head_unit, len(active), cost, n_heads, tie)
    spans, at = [], 0
    for rank in range(len(shares)):
        start, stop = found[active.index(rank)] if rank in active else (at, at)
        spans.append((start * head_unit, stop * head_unit))
        at = stop
    return tuple(spans)


def kv_heads_of(heads: Span, group: int) -> tuple[int, ...]:
    """The key/value heads of a run of query heads, repeated so that each serves equally many of them."""
    start, stop = heads
    if start == stop:
        return ()
    first, last = start // group, (stop - 1) // group
    serves = {kv: min(stop, (kv + 1) * group) - max(start, kv * group) for kv in range(first, last + 1)}
    each = math.gcd(*serves.values())
    return tuple(kv for kv, n in serves.items() for _ in range(n // each))
