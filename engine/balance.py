"""How the work is divided among devices: shares by hand or by measurement, layers in contiguous runs.

Pure arithmetic over plain numbers; knows nothing of weights or of how a device computes.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from .errors import ConfigError

MAX_RANKS = 16
Span = tuple[int, int]  # start and stop, half open
Cost = Callable[[int, int, int], float]  # of a part that has the items from start to stop
Tie = Callable[[int, int, int], tuple[float, ...]]


@dataclass(frozen=True)
class DeviceFacts:
    """A device as the planner sees it; what was not measured is None.

    `layer_s` is the time that a layer takes beside reading its weights: launches of small kernels.
    Without `looks_up` the token embedding stays on the host; with `maps_head` a head that is the
    embedding again takes no memory of its own. `free_bytes` are without the `reserved_bytes` that stay free.
    `layouts`: type, whether of experts, of how many rows a multiple a weight has that gets a layout of its own to be
    multiplied by, and how much larger it becomes there. `card` is its PCI address, where it has one.
    Units: bytes, bytes a second, floating-point operations a second, seconds.
    """

    name: str
    kind: str
    description: str
    free_bytes: int
    bandwidth: float | None = None
    flops: float | None = None
    layer_s: float = 0.0
    looks_up: bool = True
    maps_head: bool = False
    reserved_bytes: int = 0
    has_flash_attention: bool = True
    layouts: tuple[tuple[str, bool, int, float], ...] = ()
    card: str = ""

    @property
    def memory(self) -> str:
        """Whose memory it is: a card may be a device of several backends."""
        return self.card or self.name

    def grown(self, n_bytes: int, n_rows: int, kind: str, *, experts: bool) -> int:
        """What so many bytes of a weight take here beyond that."""
        for name, of_experts, unit, factor in self.layouts:
            if (name, of_experts) == (kind, experts) and n_rows % unit == 0:
                return round(n_bytes * (factor - 1.0))
        return 0


@dataclass(frozen=True)
class Shares:
    """Each rank's share of the work, in any unit, and where it comes from in words."""

    values: tuple[float, ...]
    reason: str


def check_n_ranks(option: str, n_ranks: int) -> None:
    """Raises ConfigError beyond the limit of 16 ranks."""
    if not 1 <= n_ranks <= MAX_RANKS:
        raise ConfigError(f"{option} = {n_ranks}; 1 to {MAX_RANKS} devices are supported")


def parse_shares(text: str, n_ranks: int) -> tuple[float, ...]:
    """Read `3,1` or `3/1`, one share a device in their order; devices left out at the end get 0.

    Raises ConfigError for what is no list of shares of at most n_ranks devices.
    """
    try:
        shares = tuple(float(part) for part in re.split("[,/]", text))
    except ValueError:
        raise ConfigError(f"tensor-split = {text!r}; shares are numbers, as in 3,1") from None
    if len(shares) > n_ranks:
        raise ConfigError(
            f"tensor-split = {text!r} has {len(shares)} shares; there are {n_ranks} devices for them"
        )
    return checked_shares(shares + (0.0,) * (n_ranks - len(shares)))


def checked_shares(shares: Sequence[float]) -> tuple[float, ...]:
    """The shares, if they divide anything at all; 0 means that a rank gets nothing.

    Raises ConfigError for negative shares, for those that are no number, and when all are 0.
    """
    shown = ",".join(f"{share:g}" for share in shares)
    if any(not math.isfinite(share) or share < 0 for share in shares):
        raise ConfigError(f"tensor-split = {shown}; shares must be 0 or more")
    if not any(shares):
        raise ConfigError(f"tensor-split = {shown} gives no device anything; one share must be above 0")
    return tuple(shares)


def memory_each(devices: Sequence[DeviceFacts]) -> list[int]:
    """Free memory of each rank: ranks on one device or card divide it."""
    times = Counter(d.memory for d in devices)
    return [max(0, d.free_bytes // times[d.memory]) for d in devices]


def default_shares(devices: Sequence[DeviceFacts], *, cut_bytes: int = 0, whole_bytes: int = 0) -> Shares:
    """Even shares among like devices; among unlike ones by bandwidth, or by free memory where one is unmeasured.

    With `cut_bytes` to divide and `whole_bytes` that each rank holds besides, no device gets more
    than its free memory takes while others have room. Units: bytes.
    """
    if len({(d.kind, d.description) for d in devices}) == 1:
        weights, reason = [1.0] * len(devices), f"even among {len(devices)} x {devices[0].description}"
    elif all(d.bandwidth for d in devices):
        weights, reason = [d.bandwidth or 0.0 for d in devices], "by measured bandwidth"
    else:
        weights, reason = [float(n) for n in memory_each(devices)], "by free memory"
    held = _held_to_memory(weights, [max(0, n - whole_bytes) for n in memory_each(devices)], cut_bytes)
    if held != weights:
        reason += ", held to free memory"
    total = sum(held)
    if not total or len(set(held)) == 1:
        return Shares((1.0,) * len(devices), reason)
    values = tuple(w / total for w in held)
    return Shares(
        values, reason + ": " + ", ".join(f"{d.name} {100 * v:.0f} %" for d, v in zip(devices, values))
    )


def _held_to_memory(weights: list[float], room: list[int], cut_bytes: int) -> list[float]:
    """Weights with those lowered that would overfill a device, as long as others can take the rest."""
    if sum(room) < cut_bytes:
        return weights
    full: set[int] = set()
    while True:
        left = cut_bytes - sum(room[i] for i in full)
        total = sum(w for i, w in enumerate(weights) if i not in full)
        over = {i for i, w in enumerate(weights) if i not in full and total and left * w > room[i] * total}
        if not over:
            break
        full |= over
    if not full:
        return weights
    return [
        float(room[i]) if i in full else left * w / total if total else 0.0 for i, w in enumerate(weights)
    ]


def deal(n_units: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole units by share: the largest remainders get what is left over, among equals the lower ranks."""
    exact = [Fraction(share) for share in shares]
    quotas = [n_units * share / sum(exact) for share in exact]
    counts = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(shares)), key=lambda rank: (counts[rank] - quotas[rank], rank))
    for rank in by_remainder[: n_units - sum(counts)]:
        counts[rank] += 1
    return tuple(counts)


def spans_of(counts: Sequence[int]) -> tuple[Span, ...]:
    """The contiguous runs that have these lengths."""
    bounds = list(itertools.accumulate(counts, initial=0))
    return tuple(itertools.pairwise(bounds))


def deal_spans(n_items: int, unit: int, shares: Sequence[float]) -> tuple[Span, ...]:
    """Contiguous runs of whole units by share; what is left at the end goes with the last unit."""
    spans = spans_of(deal(-(-n_items // unit), shares))
    return tuple((min(n_items, start * unit), min(n_items, stop * unit)) for start, stop in spans)


def best_cuts(
    n_items: int, n_parts: int, cost: Cost, floor: Cost, tie: Tie, *, min_items: int = 0
) -> tuple[Span, ...]:
    """Contiguous parts whose largest cost is smallest; among those the least sum of `tie`, then larger first parts.

    `floor` is at most `cost` and does not shrink when the part grows downwards; it bounds the search.
    """
    worst: list[float | None] = [0.0] + [None] * n_items
    for part in range(n_parts):
        row: list[float | None] = [None] * (n_items + 1)
        for stop in range(n_items + 1):
            for start in range(stop - min_items, -1, -1):
                best, before = row[stop], worst[start]
                if best is not None and floor(part, start, stop) >= best:
                    break
                if before is not None:
                    found = max(before, cost(part, start, stop))
                    row[stop] = found if best is None else min(best, found)
        worst = row
    limit = worst[n_items]
    assert limit is not None, "there are at least min_items items for every part"
    return _least_tie(n_items, n_parts, cost, floor, tie, limit, min_items)


def _least_tie(
    n_items: int, n_parts: int, cost: Cost, floor: Cost, tie: Tie, limit: float, min_items: int
) -> tuple[Span, ...]:
    """Of all cuts with no part above the limit, those with the least sum of `tie`."""
    Best = tuple[tuple[float, ...], tuple[Span, ...]]
    done: list[Best | None] = [((), ())] + [None] * n_items
    for part in range(n_parts):
        row: list[Best | None] = [None] * (n_items + 1)
        for stop in range(n_items + 1):
            for start in range(stop - min_items, -1, -1):
                if floor(part, start, stop) > limit:
                    break
                before, best = done[start], row[stop]
                if before is None or cost(part, start, stop) > limit:
                    continue
                total = tuple(
                    a + b for a, b in itertools.zip_longest(before[0], tie(part, start, stop), fillvalue=0.0)
                )
                if best is None or total < best[0]:
                    row[stop] = (total, (*before[1], (start, stop)))
        done = row
    found = done[n_items]
    assert found is not None, "the limit was reached before"
    return found[1]


def layer_split(
    layer_bytes: Sequence[int],
    fixed_first: int,
    fixed_last: int,
    kv_bytes_per_layer: int,
    free_bytes: Sequence[int],
    counts: Sequence[int] | None = None,
    *,
    is_last_cpu: bool = False,
) -> tuple[Span, ...]:
    """Whole layers for each device, contiguous, so that the largest used part of free memory is smallest.

    `fixed_first` (embedding) counts on the first device, `fixed_last` (norm and head) on the last.
    A CPU at the end takes only the layers that the others cannot. Explicit counts are used as they
    are, also 0. Units: bytes. Raises ConfigError for counts or devices that do not fit the layers.
    """
    n_layer, n_devices = len(layer_bytes), len(free_bytes)
    check_n_ranks("layer-split", n_devices)
    if counts is not None:
        return _given_counts(counts, n_layer, n_devices)
    if n_devices > n_layer:
        raise ConfigError(
            f"layer-split = {n_devices}; the model has {n_layer} layers, so {n_layer} devices at most"
        )
    sums = list(itertools.accumulate(layer_bytes, initial=0))

    def used(part: int, start: int, stop: int) -> float:
        fixed = (fixed_first if part == 0 else 0) + (fixed_last if part == n_devices - 1 else 0)
        return (sums[stop] - sums[start] + (stop - start) * kv_bytes_per_layer + fixed) / max(
            1, free_bytes[part]
        )

    def squared(part: int, start: int, stop: int) -> tuple[float, ...]:
        return (used(part, start, stop) ** 2,)

    def split(n: int, n_parts: int) -> tuple[Span, ...]:
        return best_cuts(n, n_parts, used, used, squared, min_items=1)

    if not is_last_cpu or n_devices == 1:
        return split(n_layer, n_devices)

    def fits(n_on_cpu: int) -> bool:
        spans = split(n_layer - n_on_cpu, n_devices - 1)
        return all(used(part, *span) <= 1 for part, span in enumerate(spans))

    most = n_layer - n_devices + 1
    n_on_cpu = min(most, 1 + bisect.bisect_left(range(1, most + 1), True, key=fits))
    return (*split(n_layer - n_on_cpu, n_devices - 1), (n_layer - n_on_cpu, n_layer))


def _given_counts(counts: Sequence[int], n_layer: int, n_devices: int) -> tuple[Span, ...]:
    shown = ",".join(map(str, counts))
    if len(counts) != n_devices:
        raise ConfigError(f"layer counts {shown} are for {len(counts)} devices; the split has {n_devices}")
    if min(counts) < 0 or sum(counts) != n_layer:
        raise ConfigError(
            f"layer counts {shown}; counts of 0 or more that sum to {n_layer} layers are needed"
        )
    return spans_of(counts)
