"""How fast each mode would be, from measured bandwidths, compute rates and link times.

A token of one request, on a rank: (weights read + cache read) / bandwidth + n_layer * layer_s.
Tensor parallel: the slowest rank, and the plan's sums over all ranks.
Layer split: the devices one after the other, and a copy of n_embd numbers between each two.
A prompt in chunks, on a rank: 2 operations for each weight and token and 4 for each head element and
pair of positions, by the compute rate, but not below one reading of the weights a chunk; sums and
copies are a chunk long. In a layer split the chunks follow one another through the devices.
Pure arithmetic: what was not measured gives None.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import pyggml as gg

from .demand import CacheFacts, Demand
from .hparams import HParams

_F32_BYTES = 4
Points = tuple[tuple[int, float], ...]  # bytes and seconds, by rising bytes


class Mode(Enum):
    """How a model lies on devices."""

    ONE = "one"
    TENSOR = "tensor"
    LAYER = "layer"


@dataclass(frozen=True)
class LinkTimes:
    """Measured times of a sum over all ranks and of a copy to the next device, at some sizes in bytes."""

    reduce: Points = ()
    copy: Points = ()


@dataclass(frozen=True)
class Work:
    """What to predict: a prompt of n_prompt tokens in chunks of n_batch, then tokens with n_past before them.

    Large sums travel as `reduce_dtype`.
    """

    n_prompt: int = 512
    n_batch: int = 512
    n_past: int = 512
    reduce_dtype: str = "f32"


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds; None where a measurement is missing. `link_s` is the links' part of `token_s`."""

    mode: Mode
    n_ranks: int
    token_s: float | None
    link_s: float | None
    first_token_s: float | None


def seconds_at(points: Points, n_bytes: int) -> float | None:
    """The time at a size between or beyond the measured ones; None where nothing was measured."""
    if not points:
        return None
    before = points[0]
    if n_bytes <= before[0]:
        return before[1]
    for after in points[1:]:
        if n_bytes <= after[0]:
            along = (n_bytes - before[0]) / (after[0] - before[0])
            return before[1] + along * (after[1] - before[1])
        before = after
    return before[1] * n_bytes / before[0]


def predict(
    hp: HParams,
    mode: Mode,
    demands: Sequence[Demand],
    cache: CacheFacts,
    work: Work,
    links: LinkTimes | None = None,
) -> Prediction:
    """The times of one request alone."""
    links = links or LinkTimes()
    link_s = _link_s(hp, mode, demands, links, work, 1)
    token_s = _together(mode, [_token_s(hp, demand, cache, work.n_past) for demand in demands])
    first_token_s = _first_token_s(hp, mode, demands, work, links)
    return Prediction(mode, len(demands), _plus(token_s, link_s), link_s, first_token_s)


def advice(predictions: Mapping[str, Prediction]) -> str:
    """Which options are fastest, for a token and for a prompt; the keys are options, "" for one device."""
    found = []
    for what, times in (
        ("a token", {options: p.token_s for options, p in predictions.items()}),
        ("the first token", {options: p.first_token_s for options, p in predictions.items()}),
    ):
        known = {options: s for options, s in times.items() if s is not None}
        if not known:
            continue
        best = min(known, key=lambda options: known[options])
        gain = f", {known[''] / known[best]:.2f} x one device" if best and "" in known else ""
        verdict = f"{best or 'one device'} is fastest for" if len(predictions) > 1 else "predicted for"
        found.append(f"{verdict} {what}: {_shown(known[best])}{gain}")
    return "; ".join(found) or "nothing was measured"


def _shown(s: float) -> str:
    return f"{1000 * s:.2f} ms" if s < 0.1 else f"{1000 * s:.0f} ms" if s < 1 else f"{s:.2f} s"


def _token_s(hp: HParams, demand: Demand, cache: CacheFacts, n_past: int) -> float | None:
    if not demand.device.bandwidth:
        return None
    cache_bytes = n_past * cache.token_bytes(hp, demand.layers, demand.heads)
    return (
        demand.read_bytes + cache_bytes
    ) / demand.device.bandwidth + demand.n_layer * demand.device.layer_s


def _prompt_s(hp: HParams, demand: Demand, work: Work) -> float | None:
    device = demand.device
    if not device.bandwidth or not device.flops:
        return None
    n_chunks = -(-work.n_prompt // work.n_batch)
    n_head = demand.heads[1] - demand.heads[0]
    pairs = work.n_prompt**2 / 2
    operations = 2 * demand.n_used * work.n_prompt + 4 * pairs * n_head * hp.head_dim * demand.n_layer
    computing = max(operations / device.flops, n_chunks * demand.read_bytes / device.bandwidth)
    return computing + n_chunks * demand.n_layer * device.layer_s


def _first_token_s(
    hp: HParams, mode: Mode, demands: Sequence[Demand], work: Work, links: LinkTimes
) -> float | None:
    n_chunks = -(-work.n_prompt // work.n_batch)
    parts = [_prompt_s(hp, demand, work) for demand in demands]
    link_s = _link_s(hp, mode, demands, links, work, min(work.n_batch, work.n_prompt))
    if mode is not Mode.LAYER:
        return _plus(_together(mode, parts), None if link_s is None else n_chunks * link_s)
    per_chunk = [None if part is None else part / n_chunks for part in parts]
    known = [part for part in per_chunk if part is not None]
    longest = max(known) if len(known) == len(parts) else None
    return _plus(
        _plus(_together(mode, per_chunk), None if longest is None else (n_chunks - 1) * longest), link_s
    )


def _together(mode: Mode, parts: Sequence[float | None]) -> float | None:
    """Ranks at the same time or one after the other."""
    if mode is Mode.LAYER:
        return _added(parts)
    known = [part for part in parts if part is not None]
    return max(known) if len(known) == len(parts) else None


def _link_s(
    hp: HParams, mode: Mode, demands: Sequence[Demand], links: LinkTimes, work: Work, n_tokens: int
) -> float | None:
    """Time on links in one pass over n_tokens."""
    if len(demands) == 1:
        return 0.0
    if mode is Mode.TENSOR:
        of_width = Counter(demands[0].sum_widths)
        parts = [_times(n, _sum_s(links, work, width * n_tokens)) for width, n in of_width.items()]
        return _added(parts)
    return _times(len(demands) - 1, seconds_at(links.copy, _F32_BYTES * hp.n_embd * n_tokens))


def _sum_s(links: LinkTimes, work: Work, n_elements: int) -> float | None:
    kind = gg.dtype(gg.reduce_dtype_for(n_elements, work.reduce_dtype))
    return seconds_at(links.reduce, n_elements * kind.type_size)


def _times(n: int, each: float | None) -> float | None:
    return None if each is None else n * each


def _added(parts: Sequence[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _plus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b
