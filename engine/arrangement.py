"""Where a model is to lie, decided on paper: each rank's part and the context, before a weight is read.

Pure arithmetic over the devices' facts; the loader and `pyggml plan` both ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .balance import DeviceFacts, deal, layer_split, memory_each, parse_shares
from .cuts import TensorPlan, tp_cuts, valid_degrees
from .demand import (
    CacheFacts,
    Demand,
    ModelFacts,
    compute_estimate,
    layer_demands,
    layer_sizes,
    mask_estimate,
    tensor_demands,
    whole_demand,
)
from .errors import ConfigError
from .fit import choose_group_ctx, fit
from .hparams import HParams
from .load_options import LoadOptions
from .placement import MIN_CTX
from .prediction import Mode
from .remedies import LEAST_CTX, Wish, default_cuts, refusal_with_remedies, remedies, split_demands
from .reserve import reserved_notes

Machine = Callable[[], Sequence[DeviceFacts]]


@dataclass(frozen=True)
class Deal:
    """What each rank is to hold; devices that are given nothing take no part.

    `ranks` are the numbers of the demands' ranks in `cuts`. `notes` are lines worth telling.
    """

    mode: Mode
    demands: tuple[Demand, ...]
    notes: tuple[str, ...] = ()
    cuts: TensorPlan | None = None
    ranks: tuple[int, ...] = (0,)

    @property
    def title(self) -> str:
        """The mode and where, in words."""
        names = ", ".join(
            d.device.description if d.device.kind == "gpu" else d.device.name for d in self.demands
        )
        if len(self.demands) == 1:
            return f"One device: {names}"
        if self.mode is Mode.TENSOR:
            return f"Tensor parallelism: {len(self.demands)} ranks ({names})"
        return f"Layer split: {len(self.demands)} devices ({names})"


@dataclass(frozen=True)
class Arrangement:
    """A deal that fits, with the context of one request. `options` are those that led to it."""

    options: LoadOptions
    deal: Deal
    n_ctx: int
    notes: tuple[str, ...]


def cache_facts(options: LoadOptions, hp: HParams) -> CacheFacts:
    """The cache that the options ask for; raises ConfigError for types that the model's heads cannot have."""
    cache = CacheFacts(options.parallel, options.cache_type_k, options.cache_type_v)
    cache.token_bytes(hp, (0, hp.n_layer), None)
    return cache


def arrange(
    model: ModelFacts, options: LoadOptions, devices: Sequence[DeviceFacts], machine: Machine
) -> Arrangement:
    """Deal the model and choose the context; with fit "auto" the first remedy replaces what does not fit.

    `machine` tells the devices that remedies may use. Raises ConfigError with the numbers and the
    options that would fit.
    """
    dealt, cache = deal_model(model, options, devices), cache_facts(options, model.hp)
    if fit(model, dealt.demands, cache, options.ctx or MIN_CTX).is_fitting:
        n_ctx = choose_group_ctx(model, dealt.demands, cache, options.ctx)
        reserved = {demand.device.name: demand.device.reserved_bytes for demand in dealt.demands}
        notes = (*dealt.notes, *reserved_notes(reserved), *_context_notes(model, options, dealt, n_ctx))
        return Arrangement(options, dealt, n_ctx, notes)
    wish = wish_of(model, options, dealt, machine())
    found = remedies(wish)
    if options.fit != "auto" or not found:
        raise ConfigError(refusal_with_remedies(wish, found))
    changed = replace(options.changed(found[0].settings), fit=None)
    chosen = devices if changed.where == options.where else _chosen(changed, wish.devices)
    arranged = arrange(model, changed, chosen, machine)
    return replace(arranged, notes=(f"--fit auto took {found[0]}", *arranged.notes))


def wish_of(model: ModelFacts, options: LoadOptions, dealt: Deal, machine: Sequence[DeviceFacts]) -> Wish:
    """What was asked for, for remedies to be found."""
    n_ctx = options.ctx or min(LEAST_CTX, model.hp.n_ctx_train)
    compute_bytes = max(demand.results_bytes(n_ctx) for demand in dealt.demands)
    cache = cache_facts(options, model.hp)
    return Wish(model, machine, dealt.demands, cache, options.ctx, options.where, compute_bytes)


def _chosen(options: LoadOptions, machine: Sequence[DeviceFacts]) -> list[DeviceFacts]:
    """The devices that a remedy's options mean."""
    if options.device is None:
        return [d for d in machine if d.kind == "gpu"][: options.n_ranks]
    named = {d.name: d for d in machine}
    return [named[name] for name in options.device.split(",")]


def _context_notes(model: ModelFacts, options: LoadOptions, dealt: Deal, n_ctx: int) -> list[str]:
    most = model.hp.n_ctx_train
    if n_ctx > most:
        return [f"ctx = {n_ctx} is longer than the model's own {most}; what lies beyond it was never trained"]
    if options.ctx is not None or n_ctx == most:
        return []
    name = fit(model, dealt.demands, cache_facts(options, model.hp), n_ctx).tightest
    return [f"ctx = {n_ctx} of the model's {most}: the largest that fits {name}"]


def deal_model(model: ModelFacts, options: LoadOptions, devices: Sequence[DeviceFacts]) -> Deal:
    """What each rank is to hold, whether or not it fits.

    Raises ConfigError where the model cannot be dealt so.
    """
    n_ctx = options.ctx or min(LEAST_CTX, model.hp.n_ctx_train)
    compute_bytes = _results(model.hp, options)
    if len(devices) == 1:
        dealt = Deal(Mode.ONE, whole_demand(model, devices[0], compute_bytes))
    elif options.tp is not None:
        dealt = _cut(model, options, devices, compute_bytes, n_ctx)
    else:
        dealt = _split(model, options, devices, compute_bytes, n_ctx)
    return replace(
        dealt, demands=tuple(_with_results(model, options, dealt, i) for i in range(len(dealt.demands)))
    )


def _results(hp: HParams, options: LoadOptions) -> int:
    """Bytes of results, without those that grow with the context."""
    return compute_estimate(hp, n_batch=_n_batch(hp, options), n_ctx=0, n_slots=options.parallel)


def _n_batch(hp: HParams, options: LoadOptions) -> int:
    return min(options.planned_batch, options.ctx or hp.n_ctx_train)


def _with_results(model: ModelFacts, options: LoadOptions, dealt: Deal, i: int) -> Demand:
    """Demand i with the results of its own part of the heads, of the feed-forward and of the vocabulary."""
    demand, hp = dealt.demands[i], model.hp
    if dealt.cuts is not None:
        rank = dealt.cuts.ranks[dealt.ranks[i]]
        columns = [spans[dealt.ranks[i]] for spans in dealt.cuts.ffn.values()]
        n_ff = max((stop - start for start, stop in columns), default=hp.n_ff)
        hp = replace(
            hp, n_head=rank.n_head, n_head_kv=rank.n_head_kv, n_vocab=rank.vocab[1] - rank.vocab[0],
            n_ff=n_ff, n_ff_exp=n_ff,
        )  # fmt: skip
    has_flash = demand.device.has_flash_attention
    return replace(
        demand,
        compute_bytes=_results(hp, options),
        mask_bytes=mask_estimate(hp, n_batch=_n_batch(hp, options), has_flash_attention=has_flash),
    )


def _cut(
    model: ModelFacts, options: LoadOptions, devices: Sequence[DeviceFacts], compute_bytes: int, n_ctx: int
) -> Deal:
    hp, cache = model.hp, cache_facts(options, model.hp)

    def dealt(cuts: TensorPlan, reason: str) -> Deal:
        ranks = tuple(r for r, rank in enumerate(cuts.ranks) if rank.share > 0)
        demands = tensor_demands(model, cuts, devices, compute_bytes)
        notes = (f"shares {reason}", *cuts.notes, *_host_sum_notes(devices))
        return Deal(Mode.TENSOR, demands, notes, cuts, ranks)

    def cuts_by(values: Sequence[float]) -> TensorPlan:
        return tp_cuts(hp, model.rows, model.types, values, expert_split=options.expert_split)

    if options.tensor_split is not None:
        values = parse_shares(options.tensor_split, len(devices))
        return dealt(cuts_by(values), f"as given: {options.tensor_split}")
    cache_bytes = cache.n_bytes(hp, (0, hp.n_layer), None, n_ctx)
    cuts, reason = default_cuts(
        model, devices, compute_bytes, cache_bytes=cache_bytes, expert_split=options.expert_split
    )
    by_default = dealt(cuts, reason)
    room = [max(0, n - compute_bytes - max(cuts.whole_bytes)) for n in memory_each(devices)]
    if len(set(room)) == 1 or not all(room) or fit(model, by_default.demands, cache, n_ctx).is_fitting:
        return by_default
    # Heads come in whole groups: shares that would fit to the byte may not, and coarser ones do.
    try:
        return dealt(
            cuts_by(room), f"by free memory, for want of room: {', '.join(_percents(devices, room))}"
        )
    except ConfigError:  # one of them would be left without work
        return by_default


def _host_sum_notes(devices: Sequence[DeviceFacts]) -> list[str]:
    names = dict.fromkeys(d.name for d in devices if d.kind != "cpu" and not d.name.startswith("cuda:"))
    if not names:
        return []
    return [
        f"sums go through host memory, since {', '.join(names)} cannot reach other cards; one device may be faster"
    ]


def _percents(devices: Sequence[DeviceFacts], shares: Sequence[int]) -> list[str]:
    return [f"{d.name} {100 * share / sum(shares):.0f} %" for d, share in zip(devices, shares)]


def _split(
    model: ModelFacts, options: LoadOptions, devices: Sequence[DeviceFacts], compute_bytes: int, n_ctx: int
) -> Deal:
    if model.hp.split_obstacle:
        n, arch = len(devices), model.hp.arch
        raise ConfigError(
            f"layer-split = {n} for {arch}: {model.hp.split_obstacle} in this model; {_degrees(model, n)}"
        )
    if options.tensor_split is None:
        demands = split_demands(model, devices, cache_facts(options, model.hp), n_ctx, compute_bytes)
        is_mixed = devices[-1].kind == "cpu" and any(d.kind != "cpu" for d in devices)
        reason = "layers dealt so that every device is filled alike"
        reason += f"; {devices[-1].name} takes those that the others cannot" if is_mixed else ""
    else:
        counts = _counts(options.tensor_split, model.hp.n_layer, len(devices))
        sizes, first, last = layer_sizes(model)
        spans = layer_split(sizes, first, last, 0, [d.free_bytes for d in devices], counts)
        demands = layer_demands(model, spans, devices, compute_bytes)
        reason = f"layers dealt as given: {options.tensor_split}"
    return Deal(Mode.LAYER, demands, (reason,), ranks=tuple(range(len(demands))))


def _degrees(model: ModelFacts, n: int) -> str:
    """What --tp does for a model whose layers cannot be split over n devices: the same n, or others that work."""
    works = [d.n_ranks for d in valid_degrees(model.hp, model.rows, model.types) if d.n_ranks > 1 and not d.obstacle]
    if n in works:
        return f"--tp {n} cuts inside layers"
    return f"this file works with --tp {', '.join(map(str, works))}" if works else "this file works on one device"


def _counts(text: str, n_layer: int, n_devices: int) -> list[int]:
    try:
        counts = [int(part) for part in text.replace("/", ",").split(",")]
    except ValueError:
        raise ConfigError(
            f"tensor-split = {text!r}; with --layer-split it is whole numbers of layers"
        ) from None
    if len(counts) == n_devices and min(counts) >= 0 and sum(counts) not in (0, n_layer):
        shown, dealt = (",".join(map(str, numbers)) for numbers in (counts, deal(n_layer, counts)))
        raise ConfigError(
            f"layer counts {shown}; counts of 0 or more that sum to {n_layer} layers are needed; "
            f"as a ratio that is {dealt}"
        )
    return counts
