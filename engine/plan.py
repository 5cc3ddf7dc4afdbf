"""A plan: the graphs of one shape, one a rank, laid out once; their host arrays are filled anew each step.

Made by the runner and kept in its cache. Positions of the mask are written as whole stretches where
they can be: a numpy comparison over a long window would cost more than the rest of the step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

import pyggml as gg

from .errors import PlanError
from .forward import HOST_FEEDS, Forward, PlanShape
from .hparams import HParams
from .logits import Logits
from .rank import Rank, Ranks

LOG = logging.getLogger("pyggml.engine")
_HIDDEN = np.float16(-np.inf)
_MASKS = ("mask", "mask_swa")
_FED = {"tokens", "positions", "kv_rows"}
# Steps of more tokens keep a card busy for longer than their launches take.
MAX_REPLAYED_ROWS = 64
# Of more rows at once somebody wants the logits themselves.
MAX_CHOSEN_ROWS = 64


class Place(NamedTuple):
    """Tokens of one slot: where they stand in the batch and in their sequence."""

    slot: int
    start: int
    ids: Sequence[int]


class Plan:
    """The graphs of all ranks for one PlanShape.

    Raises PlanError when a device cannot compute a node of its graph.
    """

    def __init__(
        self,
        ranks: Ranks,
        hp: HParams,
        shape: PlanShape,
        forward: Callable[[Forward], gg.Tensor | None],
        *,
        measure_only: bool = False,
    ) -> None:
        self.shape = shape
        self.slot0, self.n_kv = shape.slot0, shape.n_kv
        self.feeds: dict[str, np.ndarray] = {}
        self._hp = hp
        self._cache = ranks.cache
        self._last: list[tuple[int, int] | None] = [None] * shape.n_seq
        self._tokens = np.zeros((shape.n_seq, shape.n_tokens), np.int32)
        self._positions = np.zeros((shape.n_seq, shape.n_tokens), np.int32)
        self._rows = np.zeros((shape.n_seq, shape.n_tokens), np.int64)
        self.graphs: list[gg.RankGraph] = []
        self._group = ranks.group
        self._group_graph: gg.GroupGraph | None = None
        try:
            for number, rank in enumerate(ranks.ranks):
                self.graphs.append(self._build(number, rank, ranks, hp, forward))
            if measure_only:
                for graph in self.graphs:
                    graph.reserve()
            elif ranks.group is not None:
                self._group_graph = gg.GroupGraph(ranks.group, self.graphs)
            else:
                self.graphs[0].build()
        except gg.ComputeError as error:
            self.close()
            raise PlanError(f"{hp.arch}: no plan for {shape}: {error}") from error
        except BaseException:
            self.close()
            raise

    def _build(
        self,
        number: int,
        rank: Rank,
        ranks: Ranks,
        hp: HParams,
        forward: Callable[[Forward], gg.Tensor | None],
    ) -> gg.RankGraph:
        max_nodes = 128 + hp.n_layer * (128 + 2 * hp.n_expert_used)
        graph = gg.RankGraph(
            rank.backend,
            number,
            len(ranks.ranks),
            reduce_dtype=ranks.reduce_dtype if self.shape.n_tokens > 1 else "f32",  # decode keeps its bits
            max_nodes=max_nodes,
            allocator=rank.results(is_beside=self.shape.is_beside),
            feeds=self.feeds,
            replay=ranks.may_replay and self.shape.n_rows <= MAX_REPLAYED_ROWS and not self.shape.is_beside,
        )
        try:
            f = Forward(
                graph, hp, rank.weights, rank.cache, self.shape,
                layers=rank.layers, is_split_by_layer=ranks.is_split_by_layer, is_mixed=ranks.is_mixed,
                first_expert=rank.first_expert,
            )  # fmt: skip
            logits = forward(f)
            if logits is not None:
                chosen = graph.choose("chosen", logits) if self._is_sampled else None
                graph.output("logits", logits, lazy=chosen is not None)
        except BaseException:
            graph.close()
            raise
        return graph

    @property
    def _is_sampled(self) -> bool:
        """Whether tokens are chosen from the results, rather than the results read."""
        return self.shape.n_out <= MAX_CHOSEN_ROWS and not self.shape.is_hidden

    @property
    def host_bytes(self) -> int:
        """Bytes of the host arrays as far as they are in use."""
        return sum(feed.nbytes for feed in self.feeds.values())

    @property
    def replay(self) -> str:
        """What becomes of the launches: `off`, `waiting` or `recorded` on all ranks, else why one was refused."""
        states = [graph.replay for graph in self.graphs if graph.n_nodes]
        refused = [why for state, why in states if state == "refused"]
        return refused[0] if refused else states[0][0]

    @property
    def is_stale(self) -> bool:
        """Whether a rank's memory moved since this plan was laid out."""
        return any(graph.is_stale for graph in self.graphs)

    @property
    def can_move(self) -> bool:
        """Whether one plan serves all slots and windows of the cache."""
        return all(graph.window_reader is None for graph in self.graphs if graph.n_nodes)

    def move(self, slot0: int, n_kv: int) -> None:
        """See the first n_kv rows of the slots from slot0 on, in the next steps; none may be in flight."""
        if (slot0, n_kv) == (self.slot0, self.n_kv):
            return
        for graph in self.graphs:
            graph.move(slot0 - self.shape.slot0, n_kv)
        if n_kv != self.n_kv:
            self._last = [None] * self.shape.n_seq
        self.slot0, self.n_kv = slot0, n_kv

    def step(self) -> None:
        """Run all ranks."""
        if self._group_graph is not None:
            self._group_graph.step()
        else:
            self.graphs[0].step()

    def post(self) -> None:
        """Begin a step, of a group behind those in flight."""
        if self._group_graph is not None:
            self._group_graph.post()
        else:
            self.graphs[0].post()

    def post_in_turns(self, second: Plan, turns: gg.Turns) -> None:
        """Begin a step of this plan and of one beside it; finish() waits for both."""
        assert self._group_graph is not None and second._group_graph is not None, "ranks of a group take turns"
        turns.post(self._group_graph, second._group_graph)

    def finish(self) -> None:
        """Wait for all steps in flight."""
        if self._group_graph is not None:
            self._group_graph.finish()
        else:
            self.graphs[0].finish()

    def logits(self) -> np.ndarray | Logits | None:
        """Logits of the last step, [n_out, n_vocab]; the ranks' slices of the vocabulary side by side.

        Where every rank that has some chose the best by itself, the rest stays on the devices until asked for.
        """
        if not self._with_logits:
            return None
        if self._chosen is None:
            return self._fetch_logits()
        return Logits(self._fetch_logits, *self._chosen)

    @cached_property
    def _with_logits(self) -> list[gg.RankGraph]:
        return [graph for graph in self.graphs if "logits" in graph.results]

    @cached_property
    def _chosen(self) -> tuple[list[gg.Candidates], list[int]] | None:
        """What each rank chooses, as views that each step fills, and where its part of the vocabulary begins."""
        graphs = self._with_logits
        if not all("chosen" in graph.results for graph in graphs):
            return None
        found = [gg.chosen_candidates(graph.results["chosen"]) for graph in graphs]
        return found, self.first_ids

    @cached_property
    def first_ids(self) -> list[int]:
        """Where the parts of the vocabulary begin that ranks have."""
        widths = [graph.results["logits"].shape[1] for graph in self._with_logits]
        return list(np.cumsum([0, *widths[:-1]]).tolist())

    @cached_property
    def relay(self) -> gg.Relay | None:
        """What runs steps of one token each behind one another; None where a step needs the host for more than tokens,
        or a rank has no part of the vocabulary."""
        if self.shape.n_tokens > 1 or self.feeds.keys() != _FED or self._chosen is None:
            return None
        if len(self._with_logits) < len(self.graphs):
            return None
        try:
            return gg.Relay(self.graphs, self._group, tokens="tokens", choice="chosen", first_ids=self.first_ids)
        except gg.AllocationError as error:
            LOG.warning("decode steps wait for the host: %s", error)
            return None

    def _fetch_logits(self) -> np.ndarray:
        parts = [graph.fetch("logits") for graph in self._with_logits]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def fill(
        self,
        places: Sequence[Place],
        out_rows: Sequence[int],
        embed: Callable[[str, np.ndarray], np.ndarray] | None,
    ) -> None:
        """Set every input from the batch; slots without a place and padding get harmless values."""
        s, feeds = self.shape, self.feeds
        tokens, positions, rows = self._tokens, self._positions, self._rows
        self.lay_out(places, tokens, positions, rows)
        if self._has_masks:
            stretches = {place.slot - self.slot0: (place.start, len(place.ids)) for place in places}
            for r in range(s.n_seq):
                self._fill_masks(r, *stretches.get(r, (0, 0)))
        if "tokens" in feeds:
            feeds["tokens"][:] = tokens.reshape(-1)
        for table, feed in HOST_FEEDS.items():
            if feed in feeds:  # ranks whose device cannot look rows up, perhaps beside some that can
                assert embed is not None, "a rank without the embedding on its device has it on the host"
                feeds[feed][:] = embed(table, tokens.reshape(-1))
        feeds["positions"][:] = positions.reshape(-1)
        feeds["kv_rows"][:] = rows.reshape(-1)
        if "temperature" in feeds:
            feeds["temperature"][:] = temperatures(self._hp, positions).reshape(-1, 1, 1)
        if "out_rows" in feeds:
            feeds["out_rows"][:] = out_rows

    def lay_out(
        self, places: Sequence[Place], tokens: np.ndarray, positions: np.ndarray, rows: np.ndarray
    ) -> None:
        """Write tokens, positions and cache rows of these places into arrays [n_seq, n_tokens], else harmless ones.

        A place of a decode step may have no ids: its token comes from elsewhere.
        """
        s = self.shape
        if len(places) < s.n_seq or s.n_tokens > 1:
            tokens[:] = 0
            positions[:] = 0
            rows[:] = self._cache.trash_row
        for place in places:
            r, n = place.slot - self.slot0, len(place.ids)
            first_row = place.slot * self._cache.n_rows
            if s.n_tokens == 1:
                positions[r, 0], rows[r, 0] = place.start, first_row + place.start
                if n:
                    tokens[r, 0] = place.ids[0]
            else:
                span = np.arange(place.start, place.start + n)
                tokens[r, :n] = place.ids
                positions[r, :n] = span
                rows[r, :n] = first_row + span

    @cached_property
    def _has_masks(self) -> bool:
        """Whether the host fills masks, for some device that does not by itself."""
        return not self.feeds.keys().isdisjoint(_MASKS)

    def _fill_masks(self, r: int, start: int, n: int) -> None:
        """Row r of the masks: n tokens from `start`, then padding that sees position 0 only."""
        if self._last[r] == (start, n) and n == 0:
            return
        follows = n == 1 and self._last[r] == (start - 1, 1) and self.shape.n_tokens == 1
        for name, window in zip(_MASKS, (0, self._hp.n_swa)):
            if name not in self.feeds:
                continue
            mask = self.feeds[name][r, 0]
            if follows:
                mask[0, start] = 0
                if self._hp.is_chunked:
                    mask[0, : start // window * window if window else 0] = _HIDDEN
                elif window and start >= window:
                    mask[0, start - window] = _HIDDEN
            else:
                fill_mask(mask, start, n, window, is_chunked=self._hp.is_chunked)
        self._last[r] = (start, n)

    def close(self) -> None:
        """Free the graphs."""
        if relay := self.__dict__.pop("relay", None):
            relay.close()
        for graph in self.graphs:
            graph.close()


def temperatures(hp: HParams, positions: np.ndarray) -> np.ndarray:
    """What queries at these positions are multiplied by, float32 of the same shape."""
    t = hp.temperature
    assert t is not None, "only families with a temperature ask for it"
    steps = np.floor((positions.astype(np.float32) + np.float32(t.offset)) / np.float32(t.length))
    return (np.log(steps + 1.0) * t.scale + 1.0).astype(np.float32)


def fill_mask(mask: np.ndarray, start: int, n: int, window: int, *, is_chunked: bool = False) -> None:
    """Write 0 where token i may see position j and -inf elsewhere.

    Token i stands at position start + i and sees j <= start + i, and with a window only the last
    `window` of those, or with `is_chunked` those of its own stretch of `window` positions. Rows
    beyond n are padding. Shapes: mask [n_tokens, n_kv].
    """
    mask[:] = _HIDDEN
    mask[n:, 0] = 0
    if n == 0:
        return
    if window and is_chunked:
        first = start // window * window
    else:
        first = max(0, start - window + 1) if window else 0
    if not window:
        mask[:n, :start] = 0
        own = mask[:n, start : start + n]
        own[np.tri(n, dtype=bool)] = 0
        return
    positions = np.arange(start, start + n)[:, None]
    seen = np.arange(first, start + n)[None, :]
    oldest = positions // window * window if is_chunked else positions - window + 1
    mask[:n, first : start + n][(seen <= positions) & (seen >= oldest)] = 0
