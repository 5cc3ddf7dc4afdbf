"""Whether ranks fit their devices, and the context that does.

Pure arithmetic. Ranks on one device share its memory.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .demand import CacheFacts, Demand, ModelFacts
from .errors import ConfigError
from .kv_cache import WINDOW, round_up
from .placement import MIN_CTX, Placement, Placements
from .reserve import MIB


@dataclass(frozen=True)
class Fit:
    """Needed, free and reserved bytes of each device for one context, by the device's name."""

    n_ctx: int
    needed: Mapping[str, int]
    free: Mapping[str, int]
    reserved: Mapping[str, int]

    @property
    def is_fitting(self) -> bool:
        """Whether every device has room."""
        return all(self.needed[name] <= self.free[name] for name in self.needed)

    @property
    def tightest(self) -> str:
        """The device with least room left."""
        return min(self.needed, key=lambda name: self.free[name] - self.needed[name])


def fit(model: ModelFacts, demands: Sequence[Demand], cache: CacheFacts, n_ctx: int) -> Fit:
    """What a context of n_ctx needs of each device; of several on one card the first stands for all."""
    names: dict[str, str] = {}
    needed: dict[str, int] = {}
    free: dict[str, int] = {}
    reserved: dict[str, int] = {}
    for demand in demands:
        device = demand.device
        name = names.setdefault(device.memory, device.name)
        n_bytes = demand.weights_bytes + demand.results_bytes(n_ctx) + demand.cache_bytes(model.hp, cache, n_ctx)
        needed[name] = needed.get(name, 0) + n_bytes
        free[name] = min(device.free_bytes, free.get(name, device.free_bytes))
        reserved[name] = max(device.reserved_bytes, reserved.get(name, 0))
    return Fit(n_ctx, needed, free, reserved)


def placements(model: ModelFacts, demands: Sequence[Demand], cache: CacheFacts, n_ctx: int) -> Placements:
    """What would lie where, before anything is allocated."""
    return Placements(
        Placement(
            device=demand.device.name,
            description=demand.device.description,
            n_ctx=n_ctx,
            n_slots=cache.n_slots,
            weights_bytes=demand.weights_bytes,
            mapped_bytes=0,
            cache_bytes=demand.cache_bytes(model.hp, cache, n_ctx),
            compute_bytes=demand.results_bytes(n_ctx),
            replicated_bytes=demand.whole_bytes if demand.cut_bytes else 0,
            layers=demand.layers,
            heads=demand.heads,
            n_head_kv=demand.n_head_kv,
        )
        for demand in demands
    )


def largest_ctx(model: ModelFacts, demands: Sequence[Demand], cache: CacheFacts, *, part: float = 1.0) -> int:
    """The largest context, up to the model's own, that every device has room for; 0 where there is none.

    `part` of the memory that weights and results leave may be filled.
    """

    bare = fit(model, demands, CacheFacts(0, cache.type_k, cache.type_v), MIN_CTX).needed

    def is_too_much(n_windows: int) -> bool:
        found = fit(model, demands, cache, n_windows * WINDOW)
        return any(
            n - bare[name] > part * (found.free[name] - bare[name]) for name, n in found.needed.items()
        )

    most = round_up(model.hp.n_ctx_train, WINDOW) // WINDOW
    n_windows = bisect.bisect_left(range(1, most + 1), True, key=is_too_much)
    return min(n_windows * WINDOW, model.hp.n_ctx_train)


def choose_group_ctx(
    model: ModelFacts, demands: Sequence[Demand], cache: CacheFacts, asked: int | None, *, part: float = 0.8
) -> int:
    """The context of one request on all ranks: what was asked, else the largest that fills `part` of what is left.

    Raises ConfigError with the tightest device's needed and free bytes when it does not fit.
    """
    if asked is not None and asked < MIN_CTX:
        raise ConfigError(f"ctx = {asked}; at least {MIN_CTX} is needed")
    most = largest_ctx(model, demands, cache, part=part if asked is None else 1.0)
    if asked is None and most:
        return most
    found = fit(model, demands, cache, asked or MIN_CTX)
    if found.is_fitting:
        return found.n_ctx
    raise ConfigError(refusal(found, cache) + (f"; --ctx {most} fits" if most else ""))


def refusal(found: Fit, cache: CacheFacts) -> str:
    """Why something does not fit, in one line."""
    name = found.tightest
    beside = f" beside {found.reserved[name] // MIB} MiB in reserve" if found.reserved[name] else ""
    return (
        f"ctx = {found.n_ctx} with {cache.n_slots} slots needs {found.needed[name]} bytes on {name}; "
        f"{found.free[name]} are free{beside}"
    )
