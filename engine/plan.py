"""A plan: the graph of one shape, laid out once, with its host arrays filled anew each step.

Made by the runner and kept in its cache. Positions of the mask are written as whole stretches where
they can be: a numpy comparison over a long window would cost more than the rest of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyggml as gg

from .errors import PlanError
from .forward import Forward, PlanShape
from .hparams import HParams
from .kv_cache import KVCache

_HIDDEN = np.float16(-np.inf)


@dataclass(frozen=True)
class Place:
    """Tokens of one slot: where they stand in the batch and in their sequence."""

    slot: int
    start: int
    ids: Sequence[int]


class Plan:
    """One graph for one PlanShape.

    Raises PlanError when the device cannot compute a node of it.
    """

    def __init__(
        self,
        backend: gg.Backend,
        allocator: gg.Allocator,
        hp: HParams,
        weights: Mapping[str, gg.Tensor],
        cache: KVCache,
        shape: PlanShape,
        forward: Callable[[Forward], gg.Tensor | None],
        *,
        measure_only: bool = False,
    ) -> None:
        self.shape = shape
        self._n_swa = hp.n_swa
        self._cache = cache
        self._last: list[tuple[int, int] | None] = [None] * shape.n_seq
        per_layer = 64 + 2 * hp.n_expert_used
        self.graph = gg.Graph(backend, max_nodes=128 + hp.n_layer * per_layer, allocator=allocator)
        try:
            logits = forward(Forward(self.graph, hp, weights, cache, shape))
            if logits is not None:
                self.graph.output("logits", logits)
            self.graph.reserve() if measure_only else self.graph.build()
        except gg.ComputeError as error:
            self.graph.close()
            raise PlanError(f"{hp.arch}: no plan for {shape}: {error}") from error
        except BaseException:
            self.graph.close()
            raise

    def fill(self, places: Sequence[Place], out_rows: Sequence[int], embed: Callable[[np.ndarray], np.ndarray] | None) -> None:
        """Set every input from the batch; slots without a place and padding get harmless values."""
        s, feeds = self.shape, self.graph.feeds
        tokens = np.zeros((s.n_seq, s.n_tokens), np.int32)
        positions = np.zeros((s.n_seq, s.n_tokens), np.int32)
        rows = np.full((s.n_seq, s.n_tokens), self._cache.trash_row, np.int64)
        used = set()
        for place in places:
            r, n = place.slot - s.slot0, len(place.ids)
            span = np.arange(place.start, place.start + n)
            tokens[r, :n] = place.ids
            positions[r, :n] = span
            rows[r, :n] = place.slot * self._cache.n_rows + span
            used.add(r)
            self._fill_masks(r, place.start, n)
        for r in range(s.n_seq):
            if r not in used:
                self._fill_masks(r, 0, 0)
        if embed is None:
            feeds["tokens"][:] = tokens.reshape(-1)
        else:
            feeds["embd"][:] = embed(tokens.reshape(-1))
        feeds["positions"][:] = positions.reshape(-1)
        feeds["kv_rows"][:] = rows.reshape(-1)
        if "out_rows" in feeds:
            feeds["out_rows"][:] = out_rows

    def _fill_masks(self, r: int, start: int, n: int) -> None:
        """Row r of the masks: n tokens from `start`, then padding that sees position 0 only."""
        if self._last[r] == (start, n) and n == 0:
            return
        follows = n == 1 and self._last[r] == (start - 1, 1) and self.shape.n_tokens == 1
        for name, window in (("mask", 0), ("mask_swa", self._n_swa)):
            if name not in self.graph.feeds:
                continue
            mask = self.graph.feeds[name][r, 0]
            if follows:
                mask[0, start] = 0
                if window and start >= window:
                    mask[0, start - window] = _HIDDEN
            else:
                fill_mask(mask, start, n, window)
        self._last[r] = (start, n)

    def close(self) -> None:
        """Free the graph."""
        self.graph.close()


def fill_mask(mask: np.ndarray, start: int, n: int, window: int) -> None:
    """Write 0 where token i may see position j and -inf elsewhere.

    Token i stands at position start + i and sees j <= start + i, and with a window only the last
    `window` of those. Rows beyond n are padding. Shapes: mask [n_tokens, n_kv].
    """
    mask[:] = _HIDDEN
    mask[n:, 0] = 0
    if n == 0:
        return
    first = max(0, start - window + 1) if window else 0
    if not window:
        mask[:n, :start] = 0
        own = mask[:n, start : start + n]
        own[np.tri(n, dtype=bool)] = 0
        return
    positions = np.arange(start, start + n)[:, None]
    seen = np.arange(first, start + n)[None, :]
    mask[:n, first : start + n][(seen <= positions) & (seen > positions - window)] = 0
