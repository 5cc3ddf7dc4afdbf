"""From options to ranks: which devices, what lies where, and then the weights.

All refusals come before the first weight is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyggml as gg

from .errors import ConfigError
from .kv_cache import KVCache
from .model import Model
from .placement import Placement, choose_ctx
from .rank import Rank, Ranks
from .weights import Progress, Weights


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to lie on devices; the names are the command line's.

    `ctx` None means the largest context that fits. Raises ConfigError for values that make no sense.
    """

    device: str | None = None
    ctx: int | None = None
    parallel: int = 4
    batch: int = 512
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"

    def __post_init__(self) -> None:
        for name in ("parallel", "batch", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}; at least 1 is needed")


class LoadedModel:
    """A model's ranks and backends. `n_ctx` is the context of one request."""

    def __init__(self, model: Model, options: LoadOptions, progress: Progress | None = None) -> None:
        self._ranks: list[Rank] = []
        self._backends: list[gg.Backend] = []
        hp, found = model.hparams, model.weights
        target = gg.device(options.device) if options.device else gg.default_device()
        needed = 0 if target.kind == "cpu" else sum(f.tensor.n_bytes for f in found)
        self.n_ctx = choose_ctx(
            hp, asked=options.ctx, n_slots=options.parallel, type_k=options.cache_type_k, type_v=options.cache_type_v,
            weights_bytes=needed, free_bytes=target.memory_free,
        )  # fmt: skip
        self._n_mapped = sum(f.tensor.n_bytes for f in found) if target.kind == "cpu" else 0
        try:
            backend = gg.Backend(target, threads=options.threads)
            self._backends.append(backend)
            weights = Weights(backend, found, progress)
            cache = KVCache(
                backend, hp, n_slots=options.parallel, n_ctx=self.n_ctx,
                type_k=options.cache_type_k, type_v=options.cache_type_v,
            )  # fmt: skip
            self._ranks.append(Rank(backend, weights, cache, gg.Allocator(backend), range(hp.n_layer)))
        except BaseException:
            self.close()
            raise
        self.ranks = Ranks(tuple(self._ranks))

    @property
    def placement(self) -> Placement:
        """What lies where, in bytes."""
        (rank,) = self._ranks
        device = rank.backend.device
        return Placement(
            device=device.name,
            description=device.description,
            n_ctx=self.n_ctx,
            n_slots=rank.cache.n_slots,
            weights_bytes=rank.weights.n_bytes,
            mapped_bytes=max(0, self._n_mapped - rank.weights.n_bytes),
            cache_bytes=rank.cache.n_bytes,
            compute_bytes=rank.allocator.n_bytes,
        )

    def close(self) -> None:
        """Free the ranks and end their backends."""
        for rank in self._ranks:
            rank.close()
        for backend in self._backends:
            backend.close()
