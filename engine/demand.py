"""What each rank holds and reads, before anything is allocated.

Pure arithmetic over the family's table, the element types in the file and the devices' facts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyggml as gg

from .balance import DeviceFacts, Span
from .cuts import TensorPlan
from .hparams import HParams
from .kv_cache import WINDOW, cache_specs
from .slices import WHOLE, ElementType, Slice
from .weight_table import Cut, Use, Weight


@dataclass(frozen=True)
class ModelFacts:
    """A model on paper: its numbers, the rows of its table that the file has, and their types by name.

    `is_tied`: the head is the embedding's tensor.
    """

    hp: HParams
    rows: Sequence[Weight]
    types: Mapping[str, ElementType]
    is_tied: bool = False


@dataclass(frozen=True)
class CacheFacts:
    """The cache that was asked for: how many requests at once, and types."""

    n_slots: int
    type_k: str = "f16"
    type_v: str = "f16"

    def n_bytes(self, hp: HParams, layers: Span, heads: Span | None, n_ctx: int) -> int:
        """Bytes of these layers with a context of n_ctx for each request, for a rank's query heads or all."""
        specs = cache_specs(hp, range(*layers), self.n_slots, n_ctx, self.type_k, self.type_v, heads)
        return sum(rows * _row_bytes(width, kind) for (rows, width), kind in specs.values())

    def token_bytes(self, hp: HParams, layers: Span, heads: Span | None) -> int:
        """Bytes of one position of one request."""
        specs = cache_specs(hp, range(*layers), 1, WINDOW, self.type_k, self.type_v, heads)
        return sum(_row_bytes(width, kind) for (_, width), kind in specs.values())


def _row_bytes(width: int, kind: str) -> int:
    t = gg.dtype(kind)
    return width // t.block_size * t.type_size


@dataclass(frozen=True)
class Demand:
    """What one rank holds and reads. Units: bytes.

    `cut_bytes` are weights of which it has a part, `whole_bytes` those it has entirely, `layout_bytes` what
    faster layouts of both take beyond that; `read_bytes` of both are read for each token. `n_used` counts
    the weights' elements that each token of a prompt is multiplied with, the head's aside. `compute_bytes`
    is memory for results, to which `mask_bytes` come for each position of the context. `sum_widths` are a
    tensor-parallel plan's.
    """

    device: DeviceFacts
    layers: Span
    heads: Span
    n_head_kv: int
    cut_bytes: int
    whole_bytes: int
    read_bytes: int
    n_used: int
    compute_bytes: int
    mask_bytes: int = 0
    layout_bytes: int = 0
    sum_widths: tuple[int, ...] = ()

    @property
    def weights_bytes(self) -> int:
        """All weights of the rank."""
        return self.cut_bytes + self.whole_bytes + self.layout_bytes

    @property
    def n_layer(self) -> int:
        """The layers that the rank computes."""
        return self.layers[1] - self.layers[0]

    def cache_bytes(self, hp: HParams, cache: CacheFacts, n_ctx: int) -> int:
        """The rank's cache for a context of n_ctx."""
        return cache.n_bytes(hp, self.layers, self.heads, n_ctx)

    def results_bytes(self, n_ctx: int) -> int:
        """The rank's memory for results with a context of n_ctx."""
        return self.compute_bytes + n_ctx * self.mask_bytes


def mask_estimate(hp: HParams, *, n_batch: int, has_flash_attention: bool = True) -> int:
    """Bytes of results for each position of the context: masks and, where they are kept, scores."""
    scores = 0 if has_flash_attention else 4 * n_batch * hp.n_head
    return 2 * n_batch * (2 if hp.n_swa else 1) + scores


def compute_estimate(
    hp: HParams, *, n_batch: int, n_ctx: int, n_slots: int, has_flash_attention: bool = True
) -> int:
    """Bytes of results in the largest step.

    Within a tenth of what two small models took with flash attention, up to half more without. What experts bring
    out is weighted where their hidden values lay, if there is room, and is kept until then.
    """
    grows = n_ctx * mask_estimate(hp, n_batch=n_batch, has_flash_attention=has_flash_attention)
    hidden = 3 * hp.n_ff_exp
    of_expert = hidden + hp.n_embd + (hp.n_embd if hidden < hp.n_embd else 0)
    feed_forward = hp.n_expert_used * of_expert if hp.n_expert else 3 * hp.n_ff
    attention = 2 * (hp.n_head + 2 * hp.n_head_kv) * hp.head_dim
    rows = 4 * n_batch * (3 * hp.n_embd + max(feed_forward, attention))
    return max(grows + rows, 4 * n_slots * hp.n_vocab)


def whole_demand(model: ModelFacts, device: DeviceFacts, compute_bytes: int = 0) -> tuple[Demand, ...]:
    """One device that holds everything."""
    return (_demand(model, device, (0, model.hp.n_layer), lambda row: WHOLE, compute_bytes),)


def tensor_demands(
    model: ModelFacts, plan: TensorPlan, devices: Sequence[DeviceFacts], compute_bytes: int = 0
) -> tuple[Demand, ...]:
    """The ranks of a tensor-parallel plan that have a share, each on its device."""

    def of_rank(r: int) -> Demand:
        rank = plan.ranks[r]
        every = (0, model.hp.n_layer)
        demand = _demand(
            model,
            devices[r],
            every,
            lambda row: plan.slice_of(row.name, r),
            compute_bytes,
            rank.heads,
            rank.n_head_kv,
        )
        return replace(demand, sum_widths=plan.sum_widths)

    return tuple(of_rank(r) for r, rank in enumerate(plan.ranks) if rank.share > 0)


def layer_demands(
    model: ModelFacts, spans: Sequence[Span], devices: Sequence[DeviceFacts], compute_bytes: int = 0
) -> tuple[Demand, ...]:
    """The devices of a layer split that have layers."""

    def of_span(span: Span, device: DeviceFacts) -> Demand:
        def here(row: Weight) -> Slice | None:
            return WHOLE if is_in_layers(row.name, span, model.hp.n_layer) else None

        return _demand(model, device, span, here, compute_bytes)

    return tuple(of_span(span, device) for span, device in zip(spans, devices) if span[0] < span[1])


def is_in_layers(name: str, layers: Span, n_layer: int) -> bool:
    """Whether a weight lies with these layers: the embedding with the first, norm and head with the last."""
    if name.startswith("blk."):
        return layers[0] <= int(name.split(".")[1]) < layers[1]
    if name.startswith("token_embd"):
        return layers[0] == 0
    return layers[1] == n_layer if name.startswith("output") else True


def layer_sizes(model: ModelFacts) -> tuple[list[int], int, int]:
    """Bytes of each layer, of what lies with the first and of what lies with the last."""
    hp = model.hp
    sizes, first, last = [0] * hp.n_layer, 0, 0
    for row in _present(model):
        n_bytes = WHOLE.n_bytes(row.shape, model.types[row.name])
        if row.name.startswith("blk."):
            sizes[int(row.name.split(".")[1])] += n_bytes
        elif row.name.startswith("token_embd"):
            first += n_bytes
        else:
            last += n_bytes
    return sizes, first, last


def _present(model: ModelFacts) -> list[Weight]:
    return [row for row in model.rows if row.name in model.types]


def _demand(
    model: ModelFacts,
    device: DeviceFacts,
    layers: Span,
    slice_of: Callable[[Weight], Slice | None],
    compute_bytes: int,
    heads: Span | None = None,
    n_head_kv: int | None = None,
) -> Demand:
    hp = model.hp
    cut_bytes = whole_bytes = read_bytes = n_used = layout_bytes = 0
    for row in _present(model):
        part, kind = slice_of(row), model.types[row.name]
        if part is None or (row.use is Use.GET_ROWS and not device.looks_up):
            continue
        n_bytes, n = part.n_bytes(row.shape, kind), math.prod(part.shape(row.shape))
        is_elsewhere = model.is_tied and device.maps_head and row.cut is Cut.VOCAB
        if part is WHOLE:
            whole_bytes += 0 if is_elsewhere else n_bytes
        else:
            cut_bytes += 0 if is_elsewhere else n_bytes
        if row.use is Use.GET_ROWS:
            continue
        if not is_elsewhere:
            layout_bytes += _grown(device, row, part.shape(row.shape), kind, n_bytes)
        if row.use is Use.MUL_MAT_ID:  # on average, however the experts are cut
            n_bytes, n = n_bytes * hp.n_expert_used // hp.n_expert, n * hp.n_expert_used // hp.n_expert
        read_bytes += n_bytes
        if row.use in (Use.MUL_MAT, Use.MUL_MAT_ID) and row.cut is not Cut.VOCAB:
            n_used += n
    return Demand(
        device, layers, (0, hp.n_head) if heads is None else heads, hp.n_head_kv if n_head_kv is None else n_head_kv,
        cut_bytes, whole_bytes, read_bytes, n_used, compute_bytes, layout_bytes=layout_bytes,
    )  # fmt: skip


def _grown(device: DeviceFacts, row: Weight, shape: Sequence[int], kind: ElementType, n_bytes: int) -> int:
    experts = row.use is Use.MUL_MAT_ID
    has_layout = experts or (row.use is Use.MUL_MAT and len(shape) == 2)
    return device.grown(n_bytes, shape[-2], str(kind), experts=experts) if has_layout else 0
