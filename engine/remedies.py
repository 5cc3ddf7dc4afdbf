"""What would fit: the options with which a model that does not fit its device does.

Pure arithmetic over the devices' facts; the best remedy first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .balance import MAX_RANKS, DeviceFacts, default_shares, layer_split, memory_each
from .cuts import TensorPlan, tp_cuts
from .demand import CacheFacts, Demand, ModelFacts, layer_demands, layer_sizes, tensor_demands, whole_demand
from .errors import ConfigError
from .fit import Fit, fit, largest_ctx, refusal
from .reserve import MIB, Reserve

# A context below this is no remedy for who asked for none.
LEAST_CTX = 2048
_SMALL_CACHE = "q8_0"


@dataclass(frozen=True)
class Remedy:
    """Options that make the model fit, by their long names, and what they need."""

    settings: Mapping[str, str | int]
    fit: Fit

    def __str__(self) -> str:
        return " ".join(f"--{name} {value}" for name, value in self.settings.items())


@dataclass(frozen=True)
class Wish:
    """What was asked for and does not fit: where it would lie, its cache and context.

    `settings` are the options that say where (`{"tp": 2}`); `ctx` None left the context to us.
    `devices` are those of the machine that serve, in their order; `compute_bytes` is each rank's
    memory for results.
    """

    model: ModelFacts
    devices: Sequence[DeviceFacts]
    demands: Sequence[Demand]
    cache: CacheFacts
    ctx: int | None = None
    settings: Mapping[str, str | int] | None = None
    compute_bytes: int = 0

    @property
    def wanted_ctx(self) -> int:
        """The context that a remedy has to allow."""
        return self.ctx or min(LEAST_CTX, self.model.hp.n_ctx_train)


def refusal_with_remedies(wish: Wish, remedies: Sequence[Remedy]) -> str:
    """What was asked, what is, and what would work, in one line."""
    found = "; ".join(map(str, remedies))
    works = (
        f"these fit: {found}" if remedies else "nothing on this machine fits it; a smaller quantisation might"
    )
    return f"{refusal(fit(wish.model, wish.demands, wish.cache, wish.wanted_ctx), wish.cache)}; {works}"


def remedies(wish: Wish) -> list[Remedy]:
    """Every way to make it fit, the best first: more GPUs, a smaller cache, a shorter context.

    The CPU helps out only where the GPUs alone cannot hold the context that was asked for.
    """
    found: list[Remedy] = []
    known: list[dict[str, str | int]] = []
    for settings, demands, cache, ctx in _candidates(wish):
        reserve = {name: value for name, value in settings.items() if name == "reserve"}
        where = {name: value for name, value in settings.items() if name != "reserve"}
        result = fit(wish.model, demands, cache, ctx)
        if result.is_fitting and where not in known:
            known.append(where)
            found.append(Remedy(where | (reserve or _reserve_setting(demands)), result))
    return found


Candidate = tuple[dict[str, str | int], Sequence[Demand], CacheFacts, int]


def _candidates(wish: Wish) -> Iterator[Candidate]:
    gpus = [d for d in wish.devices if d.kind == "gpu"]
    cpus = [d for d in wish.devices if d.kind == "cpu"]
    ctx, own = wish.wanted_ctx, dict(wish.settings or {})
    asked = {d.device.name for d in wish.demands}
    one = max(gpus, key=lambda d: d.free_bytes, default=None)
    if one is not None and asked != {one.name}:
        yield {"device": one.name}, whole_demand(wish.model, one, wish.compute_bytes), wish.cache, ctx
    groups = list(_smallest_fitting(wish, gpus))
    yield from groups
    small = replace(wish.cache, type_k=_SMALL_CACHE, type_v=_SMALL_CACHE)
    if _is_smaller(wish, small):
        yield own | {"cache-type-k": _SMALL_CACHE, "cache-type-v": _SMALL_CACHE}, wish.demands, small, ctx
    if wish.ctx is not None:
        yield from _shorter(wish, own, wish.demands)
        if not groups and len(gpus) > 1:
            for settings, demands in _groups(wish, gpus, min(len(gpus), MAX_RANKS)):
                yield from _shorter(wish, settings, demands)
    if groups or _fits_one(wish, gpus):
        return
    can_split = not wish.model.hp.split_obstacle and len(gpus) < min(MAX_RANKS, wish.model.hp.n_layer)
    if cpus and gpus and can_split:
        names = ",".join(d.name for d in (*gpus, cpus[0]))
        demands = split_demands(wish.model, [*gpus, cpus[0]], wish.cache, ctx, wish.compute_bytes)
        yield {"layer-split": len(gpus) + 1, "device": names}, demands, wish.cache, ctx
    for cpu in cpus[:1]:
        if asked != {cpu.name}:
            yield {"device": cpu.name}, whole_demand(wish.model, cpu, wish.compute_bytes), wish.cache, ctx


def _reserve_setting(demands: Sequence[Demand]) -> dict[str, str | int]:
    """The option that keeps free on these devices what was to stay free."""
    names = [d.device.name for d in demands]
    mib = tuple((d.device.name, d.device.reserved_bytes // MIB) for d in demands)
    return Reserve(0, mib).setting(names)


def _fits_one(wish: Wish, gpus: Sequence[DeviceFacts]) -> bool:
    demands = (whole_demand(wish.model, gpu, wish.compute_bytes) for gpu in gpus)
    return any(fit(wish.model, demand, wish.cache, wish.wanted_ctx).is_fitting for demand in demands)


def _is_smaller(wish: Wish, cache: CacheFacts) -> bool:
    hp = wish.model.hp
    try:
        every = (0, hp.n_layer)
        return cache.token_bytes(hp, every, None) < wish.cache.token_bytes(hp, every, None)
    except ConfigError:  # its blocks do not divide the heads
        return False


def _shorter(wish: Wish, settings: Mapping[str, str | int], demands: Sequence[Demand]) -> Iterator[Candidate]:
    """A shorter context in the same place."""
    most = largest_ctx(wish.model, demands, wish.cache)
    if 0 < most < wish.wanted_ctx:
        yield {**settings, "ctx": most}, demands, wish.cache, most


def _smallest_fitting(wish: Wish, gpus: Sequence[DeviceFacts]) -> Iterator[Candidate]:
    """The fewest GPUs that fit in either mode."""
    done: set[str] = set()
    for n in range(2, min(len(gpus), MAX_RANKS) + 1):
        for settings, demands in _groups(wish, gpus, n):
            mode = next(iter(settings))
            if mode not in done and fit(wish.model, demands, wish.cache, wish.wanted_ctx).is_fitting:
                done.add(mode)
                yield settings, demands, wish.cache, wish.wanted_ctx


def _groups(
    wish: Wish, gpus: Sequence[DeviceFacts], n: int
) -> Iterator[tuple[dict[str, str | int], Sequence[Demand]]]:
    """Both modes on the first n GPUs, which need no names, then on the n with most free memory."""
    first = tuple(gpus[:n])
    most_free = set(sorted(range(len(gpus)), key=lambda i: -gpus[i].free_bytes)[:n])
    for chosen in dict.fromkeys((first, tuple(d for i, d in enumerate(gpus) if i in most_free))):
        names: dict[str, str | int] = {} if chosen == first else {"device": ",".join(d.name for d in chosen)}
        try:
            yield {"tp": n, **names}, cut_demands(wish.model, chosen, wish.compute_bytes)
        except ConfigError:  # the model cannot be cut over so many
            pass
        if n <= wish.model.hp.n_layer and not wish.model.hp.split_obstacle:
            split = split_demands(wish.model, chosen, wish.cache, wish.wanted_ctx, wish.compute_bytes)
            yield {"layer-split": n, **names}, split


def cut_demands(
    model: ModelFacts, devices: Sequence[DeviceFacts], compute_bytes: int = 0, *, expert_split: str = "inside"
) -> tuple[Demand, ...]:
    """Tensor parallelism over these devices with the default shares."""
    plan, _ = default_cuts(model, devices, compute_bytes, expert_split=expert_split)
    return tensor_demands(model, plan, devices, compute_bytes)


# A measured share may be too small for a rank to hold anything: the parts of the largest share tried then.
_FLOORS = (0.0, 0.03, 0.06, 0.12, 0.25, 0.5)


def default_cuts(
    model: ModelFacts,
    devices: Sequence[DeviceFacts],
    compute_bytes: int = 0,
    *,
    cache_bytes: int = 0,
    expert_split: str = "inside",
) -> tuple[TensorPlan, str]:
    """The cuts for the default shares of these devices, and where the shares come from in words.

    `cache_bytes` of the whole cache are divided like the weights.
    """
    even = tp_cuts(model.hp, model.rows, model.types, (1.0,) * len(devices), expert_split=expert_split)
    whole_bytes = max(even.whole_bytes) + compute_bytes
    shares = default_shares(devices, cut_bytes=sum(even.cut_bytes) + cache_bytes, whole_bytes=whole_bytes)
    largest, reason = max(shares.values), shares.reason
    for floor in _FLOORS:
        values = tuple(max(value, floor * largest) for value in shares.values)
        try:
            return tp_cuts(model.hp, model.rows, model.types, values, expert_split=expert_split), reason
        except ConfigError:
            reason = f"{shares.reason}; the least raised until each rank holds a part"
    return even, "even, since no other shares give each rank a part"


def split_demands(
    model: ModelFacts, devices: Sequence[DeviceFacts], cache: CacheFacts, n_ctx: int, compute_bytes: int = 0
) -> tuple[Demand, ...]:
    """Whole layers on these devices, balanced over their free memory; a CPU behind GPUs takes what is left."""
    sizes, first, last = layer_sizes(model)
    if not devices[0].looks_up:
        first = 0
    free = [max(0, n - compute_bytes) for n in memory_each(devices)]
    kv_bytes = -(-cache.n_bytes(model.hp, (0, model.hp.n_layer), None, n_ctx) // model.hp.n_layer)
    is_last_cpu = devices[-1].kind == "cpu" and any(d.kind != "cpu" for d in devices)
    spans = layer_split(sizes, first, last, kv_bytes, free, is_last_cpu=is_last_cpu)
    return layer_demands(model, spans, devices, compute_bytes)
