"""A rank: one device's share of a model, with everything that lives there."""

from __future__ import annotations

from dataclasses import dataclass

import pyggml as gg

from .kv_cache import KVCache
from .weights import Weights


@dataclass
class Rank:
    """A backend with its weights, cache and memory for results. `layers` are those it computes."""

    backend: gg.Backend
    weights: Weights
    cache: KVCache
    allocator: gg.Allocator
    layers: range
    first_expert: int = 0
    beside: gg.Allocator | None = None

    @property
    def kernels(self) -> tuple[str, str]:
        """What decides how the rank rounds: the backend's module and the product."""
        return self.backend.device.module, self.backend.device.description

    def results(self, *, is_beside: bool) -> gg.Allocator:
        """Memory for what plans compute; is_beside: for those that take turns with others, made when first wanted."""
        if not is_beside:
            return self.allocator
        if self.beside is None:
            self.beside = gg.Allocator(self.backend)
        return self.beside

    def free_beside(self) -> None:
        """Free that memory; plans in it are closed."""
        if self.beside is not None:
            self.beside.close()
            self.beside = None

    @property
    def compute_bytes(self) -> int:
        """Memory for results."""
        return self.allocator.n_bytes + (0 if self.beside is None else self.beside.n_bytes)

    def close(self) -> None:
        """Free what lies on the device; the backend stays its owner's."""
        self.free_beside()
        self.allocator.close()
        self.cache.close()
        self.weights.close()


@dataclass(frozen=True)
class Ranks:
    """All ranks of a model and how they work together; `group` is None for a single one.

    `may_replay` allows the launches of small steps to be recorded and replayed, where devices can.
    """

    ranks: tuple[Rank, ...]
    group: gg.Group | None = None
    is_split_by_layer: bool = False
    may_replay: bool = True

    @property
    def reduce_dtype(self) -> str:
        """What large sums over the ranks travel as."""
        return "f32" if self.group is None else self.group.reduce_dtype

    @property
    def may_take_turns(self) -> bool:
        """Whether ranks cut layers among them, and can compute while their sums travel."""
        return self.group is not None and not self.is_split_by_layer and gg.Turns.are_possible(self.group)

    @property
    def is_mixed(self) -> bool:
        """Whether ranks that cut layers among them compute with different kernels."""
        return not self.is_split_by_layer and len({rank.kernels for rank in self.ranks}) > 1

    @property
    def cache(self) -> KVCache:
        """A cache that tells slots and rows, which are the same on all ranks."""
        return self.ranks[0].cache

    def expose(self, slot0: int, n_seq: int, n_kv: int) -> None:
        """Make rows readable in every rank's cache."""
        for rank in self.ranks:
            rank.cache.expose(slot0, n_seq, n_kv)

    def close(self) -> None:
        """Free all ranks."""
        for rank in self.ranks:
            rank.close()
