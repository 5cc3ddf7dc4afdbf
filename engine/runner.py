"""Runs batches on all ranks: finds or makes the plan of a batch's shape, fills it, reads the logits.

Owns the plan cache; borrows the ranks. Engine thread only.
Prompt chunks are padded to a few lengths, and slots taken in groups of a few sizes, so that few plans
serve all batches; where attention takes any length of the cache, a plan also serves all slots and
lengths.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

import pyggml as gg

from .batch import Batch, Limits, Phase
from .chain import STILL_BUSY_S, Chain
from .forward import PlanShape
from .hparams import HParams
from .logits import Logits
from .micro_batch import MicroBatch, is_last, run_in_stages, run_in_turns, split
from .models.family import Family
from .plan import Place, Plan
from .plan_cache import PlanCache
from .rank import Ranks
from .rounding import Rounding, padded_length
from .runner_stats import RunnerStats
from .step_profile import StepProfile, step_profile
from .weights import host_rows

MAX_MISSED = 6  # in a row, after which 62 decode steps wait for the host
MAX_READ_BYTES = 1 << 27  # of the logits of one step
MAX_IN_FLIGHT = 64  # micro-batches of one prefill step where stages work on several at once
FEW_IN_FLIGHT = 8  # where each place in the cache is a plan, or nobody knows how long they take


class Runner:
    """The forward pass of one model on its ranks. `max_chunk` bounds the tokens of a prefill step.

    Where ranks take turns, prompts of `halved_from` tokens and more are two micro-batches.
    """

    def __init__(
        self, ranks: Ranks, hp: HParams, family: Family, max_chunk: int, *, takes_turns: bool = False
    ) -> None:
        self.hp = hp
        self.max_chunk = max_chunk
        self.stats = RunnerStats()
        self._family = family
        self._plans = PlanCache([])
        assert not (takes_turns and ranks.is_split_by_layer), "stages have their own way"
        self.takes_turns = takes_turns
        self.halved_from = max_chunk + 1
        self._turns: gg.Turns | None = None
        self._meanwhile: Callable[[], None] = lambda: None
        self._chain: Chain | None = None
        self._n_missed = self._n_single = 0
        self.came_early = True
        self.use(ranks)

    def use(self, ranks: Ranks) -> None:
        """Run on these ranks from now on."""
        self.close()
        self._ranks = ranks
        self._plans = PlanCache([rank.backend.device for rank in ranks.ranks])
        self._cache = ranks.cache
        self._embed = host_rows(rank.weights for rank in ranks.ranks)
        # A processor computes on the thread that begins a step.
        self._works_beside = ranks.group is not None or ranks.ranks[0].backend.device.kind != "cpu"
        on_cpus = all(rank.backend.device.kind == "cpu" for rank in ranks.ranks)
        self._rounding = Rounding(self._cache.n_rows, self._cache.n_slots, self.max_chunk, on_cpus=on_cpus)
        self._reserve()

    def _reserve(self) -> None:
        """Size the allocator by the largest shapes of requests, so that their plans never move it.

        Logits of a whole chunk, as score() wants them, may: stale plans are then made anew.
        """
        n_rows, n_slots = self._cache.n_rows, self._cache.n_slots
        chunk = PlanShape(min(self.max_chunk, n_rows), 1, 0, n_rows, 1)
        beside = [chunk._replace(is_beside=True)] if self.takes_turns else []
        for shape in (chunk, PlanShape(1, n_slots, 0, n_rows, n_slots), *beside):
            plan = self._make(shape, measure_only=True)
            self._rounding.can_move &= plan.can_move
            plan.close()

    def _make(self, shape: PlanShape, *, measure_only: bool = False) -> Plan:
        return Plan(self._ranks, self.hp, shape, self._family.forward, measure_only=measure_only)

    @property
    def is_ahead(self) -> bool:
        """Whether a decode step was begun that nobody has asked for yet: of all that went on in the step before."""
        return self._chain is not None

    def settle(self) -> Exception | None:
        """Let nothing be in flight: a step begun ahead is waited for and not used; what went wrong in it."""
        chain, self._chain = self._chain, None
        return None if chain is None else chain.drop()

    def _check_settled(self) -> None:
        if (fault := self.settle()) is not None:
            raise fault

    def forget(self, slot: int) -> None:
        """Let nothing that lies in a slot be read again."""
        self.settle()
        for rank in self._ranks.ranks:
            rank.cache.forget(slot)

    @property
    def is_broken(self) -> bool:
        """Whether a fault has closed the group of ranks, so that nothing can run any more."""
        return self._ranks.group is not None and self._ranks.group.closed

    @property
    def limits(self) -> Limits:
        """The most prompt tokens of a step; more than a chunk where stages take turns on several."""
        most = MAX_IN_FLIGHT if self._rounding.can_move else FEW_IN_FLIGHT
        n, n_first = (most, FEW_IN_FLIGHT) if self._ranks.is_split_by_layer else (2, 2) if self.takes_turns else (1, 1)
        max_read = max(1, min(self.max_chunk, MAX_READ_BYTES // (4 * self.hp.n_vocab)))
        return Limits(self.max_chunk * n, self.max_chunk * n_first, self.max_chunk // 2, max_read, self.max_chunk)

    def time_prefill(self, n_tokens: int) -> float:
        """Seconds of a step with that many tokens of an empty cache, which it leaves empty."""
        n_tokens = min(n_tokens, self._cache.n_rows)
        ids = np.random.default_rng(0).integers(0, self.hp.n_vocab, n_tokens).tolist()
        batches = self._micro_batches(Place(0, 0, ids), (), 1)
        for batch in batches:
            batch.fill(self._embed)
            batch.plan.feeds["kv_rows"][:] = self._cache.trash_row
        seconds = 0.0
        for _ in range(2):
            start = time.perf_counter()
            self._run_in_turns(batches)
            seconds = time.perf_counter() - start
        return seconds

    def run(self, batch: Batch, meanwhile: Callable[[], None] = lambda: None) -> np.ndarray | Logits:
        """Logits of the rows that want them, float32 [n, n_vocab], or where they lie; valid until the next run.

        A row that is read gives the results of all its tokens. `came_early` says afterwards whether the step's end was
        waited for; else nobody knows how long it took.

        `meanwhile` is called once, while the devices work where they do so by themselves.
        """
        self._meanwhile = meanwhile
        self.came_early = True
        places = [Place(row.slot, row.start, row.ids) for row in batch.rows]
        if batch.phase is Phase.DECODE:
            return self._decode(places, [p.slot for p, goes_on in zip(places, batch.goes_on) if goes_on])
        self._check_settled()
        if len(places) > 1:
            return self._prefill_several(places, [row.wants_logits for row in batch.rows])
        (place,), (row,) = places, batch.rows
        if row.is_read and (reader := row.request.reader) is not None:
            return self.prefill(place, range(len(place.ids)), is_hidden=reader.wants_hidden)
        return self.prefill(place, [len(place.ids) - 1] if row.wants_logits else [])

    def _decode(self, places: Sequence[Place], go_on: Sequence[int]) -> np.ndarray | Logits:
        """A token of each place; where the likeliest token of some slots goes on, the step after it begins with it."""
        chain = self._chain_for(places, may_begin=bool(go_on))
        self._chain = None
        if chain is None:
            plan = self._moved(self._rounding.decode(places))
            return self._taken(self._run(plan, places, ()), places, plan)
        next_places = [Place(p.slot, p.start + 1, p.ids) for p in places if p.slot in go_on]
        here = 1, chain.plan.shape.n_seq, chain.plan.slot0, chain.plan.n_kv
        is_followed = bool(next_places) and self._rounding.decode(next_places)[:4] == here
        found, native_s, self.came_early = chain.step(go_on if is_followed else (), self._pause)
        self._chain = chain if is_followed else None
        self.stats.native_s += native_s
        self.stats.n_steps += 1
        return self._taken(found, places, chain.plan)

    def _chain_for(self, places: Sequence[Place], *, may_begin: bool) -> Chain | None:
        """The chain whose last step is that of these tokens, begun if it may be; None: they have a step alone."""
        chain = self._chain
        if chain is not None and chain.serves(places):
            self._n_missed = 0
            return chain
        if chain is not None:  # its token is not wanted, and the next may not be either
            self._n_missed = min(self._n_missed + 1, MAX_MISSED)
            self._n_single = (1 << self._n_missed) - 2
        self._check_settled()
        if not may_begin or self._n_single:
            self._n_single = max(0, self._n_single - 1)
            return None
        plan = self._moved(self._rounding.decode(places))
        relay = plan.relay
        if relay is None or not relay.is_ready:
            return None
        chain = Chain(plan, relay)
        chain.begin(places)
        return chain

    def _taken(self, logits: np.ndarray | Logits, places: Sequence[Place], plan: Plan) -> np.ndarray | Logits:
        """The rows of these places of a decode step."""
        at = [p.slot - plan.slot0 for p in places]
        if len(at) == plan.shape.n_seq:
            return logits
        return logits.take(at) if isinstance(logits, Logits) else logits[at]

    def prefill(self, place: Place, out_rows: Sequence[int], *, is_hidden: bool = False) -> np.ndarray | Logits:
        """Evaluate a chunk and return the logits of some of its tokens, [len(out_rows), n_vocab]."""
        if len(place.ids) > self.max_chunk or (self._is_halved(place) and not is_hidden and is_last(out_rows, place)):
            return self._several_of_one(place, out_rows)
        n_out = len(out_rows) if len(out_rows) <= 1 else padded_length(len(place.ids), self.max_chunk)
        shape = self._rounding.prefill(place, n_out)._replace(is_hidden=is_hidden)
        n = shape.n_tokens
        padding = [0] * (n_out - len(out_rows))
        logits = self._step(shape, [place], [*out_rows, *padding])
        if isinstance(logits, Logits):
            if len(out_rows) == 1:
                return logits
            logits = logits.rows()
        return logits[: len(out_rows)] if n_out != n or n == 1 else logits[list(out_rows)]

    def _is_halved(self, place: Place) -> bool:
        return self.takes_turns and len(place.ids) >= self.halved_from

    def _several_of_one(self, place: Place, out_rows: Sequence[int]) -> np.ndarray | Logits:
        """Evaluate micro-batches of a prompt that are in flight together; the logits of its last token, if wanted."""
        group = self._ranks.group
        assert group is not None and (self.takes_turns or self._ranks.is_split_by_layer), "only ranks take several"
        n_lanes = 1 if self.takes_turns else group.n_ranks + 1
        batches = self._micro_batches(place, out_rows, n_lanes)
        start = time.perf_counter()
        if self.takes_turns:
            for batch in batches:
                batch.fill(self._embed)
            self._run_in_turns(batches)
            self.stats.n_steps += 1
        else:
            run_in_stages(batches, group, n_lanes, self._embed, self.stats, self._pause)
        self.stats.native_s += time.perf_counter() - start
        return self._logits(batches[-1].plan)

    def _micro_batches(self, place: Place, out_rows: Sequence[int], n_lanes: int) -> list[MicroBatch]:
        """The pieces of a prompt with their plans; nothing is built or freed while they are in flight."""
        half = padded_length((len(place.ids) + 1) // 2, self.max_chunk)
        pieces = split(place, out_rows, half if self._is_halved(place) else self.max_chunk)
        shapes = [
            self._rounding.prefill(piece, len(out), k % n_lanes)._replace(is_beside=self.takes_turns and k > 0)
            for k, (piece, out) in enumerate(pieces)
        ]
        self._plans.kept = {self._rounding.key(shape) for shape in shapes}
        try:
            plans = [self._plan(shape) for shape in shapes]
        finally:
            self._plans.kept = ()
        self._ranks.expose(place.slot, 1, shapes[-1].n_kv)
        return [MicroBatch(plan, shape, *piece) for plan, shape, piece in zip(plans, shapes, pieces)]

    def _run_in_turns(self, batches: Sequence[MicroBatch]) -> None:
        if self.takes_turns and self._turns is None:
            assert self._ranks.group is not None, "a single rank has no turns"
            self._turns = gg.Turns(self._ranks.group)
        run_in_turns(batches, self._turns, self._pause)

    def _prefill_several(self, places: Sequence[Place], wants: Sequence[bool]) -> np.ndarray | Logits:
        """Evaluate chunks of neighbouring slots together, padded to the longest."""
        shape = self._rounding.several(places)
        n, slot0 = shape.n_tokens, shape.slot0
        at = [p.slot - slot0 for p, is_wanted in zip(places, wants) if is_wanted]
        out_rows = [0] * (shape.n_seq if at else 0)
        for place in places:
            if at:
                out_rows[place.slot - slot0] = (place.slot - slot0) * n + len(place.ids) - 1
        logits = self._step(shape._replace(n_out=len(out_rows)), places, out_rows)
        return logits.take(at) if isinstance(logits, Logits) else logits[at]

    def _step(self, shape: PlanShape, places: Sequence[Place], out_rows: Sequence[int]) -> np.ndarray | Logits:
        return self._run(self._moved(shape), places, out_rows)

    def _moved(self, shape: PlanShape) -> Plan:
        """The plan of a shape, where this step needs it."""
        plan = self._plan(shape)
        plan.move(shape.slot0, shape.n_kv)
        self._ranks.expose(shape.slot0, shape.n_seq, shape.n_kv)
        return plan

    def _run(self, plan: Plan, places: Sequence[Place], out_rows: Sequence[int]) -> np.ndarray | Logits:
        plan.fill(places, out_rows, self._embed)
        if not self._works_beside:
            self._pause()
        start = time.perf_counter()
        plan.post()
        posted = time.perf_counter()
        try:
            self._pause()
        finally:
            paused = time.perf_counter()
            plan.finish()
        end = time.perf_counter()
        is_hidden = end - paused > STILL_BUSY_S  # else the devices may have waited for what was done beside them
        self.stats.native_s += end - start - (0.0 if is_hidden else paused - posted)
        self.stats.n_steps += 1
        return self._logits(plan)

    def _pause(self) -> None:
        """Let the caller do what waits for no device; once a run."""
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()

    def _logits(self, plan: Plan) -> np.ndarray | Logits:
        found = plan.logits()
        return np.empty((0, self.hp.n_vocab), np.float32) if found is None else found

    def _plan(self, shape: PlanShape) -> Plan:
        key = self._rounding.key(shape)
        plan = self._plans.find(key)
        if plan is not None:
            return plan
        start = time.perf_counter()
        plan = self._plans.add(key, self._make)
        plan.move(shape.slot0, shape.n_kv)
        self.stats.n_plans_built += 1
        self.stats.plan_s += time.perf_counter() - start
        return plan

    @property
    def replays(self) -> Counter[str]:
        """Decode plans by what becomes of their launches: `recorded`, `waiting`, `off`, or why they were refused."""
        found: Counter[str] = Counter()
        for shape, plan in self._plans.items():
            if shape.n_tokens == 1 and not shape.is_beside:
                found[plan.replay] += 1
        return found

    def profile(self, n_tokens: int, n_seq: int, n_past: int) -> StepProfile:
        """Where the time of a step goes that adds n_tokens to each of n_seq sequences of n_past tokens."""
        self.settle()
        n = padded_length(n_tokens, self.max_chunk)
        shape = PlanShape(n, n_seq, 0, self._rounding.window(n_past + n, n), n_seq if n == 1 else 1)
        return step_profile(self._ranks, self.hp, self._family.forward, shape, self._embed)

    def close(self) -> None:
        """Free the plans."""
        self.settle()
        self._plans.clear()
        if self._turns is not None:
            self._turns.close()
            self._turns = None
