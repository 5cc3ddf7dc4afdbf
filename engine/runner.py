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

from .batch import Batch, Limits, Phase
from .chain import STILL_BUSY_S, Chain
from .forward import PlanShape
from .hparams import HParams
from .logits import Logits
from .models.family import Family
from .plan import Place, Plan
from .plan_cache import PlanCache
from .rank import Ranks
from .rounding import padded_length, slot_group, window_length
from .runner_stats import RunnerStats
from .step_profile import StepProfile, step_profile
from .weights import host_rows

MAX_MISSED = 6  # in a row, after which 62 decode steps wait for the host
MAX_READ_BYTES = 1 << 27  # of the logits of one step
MAX_IN_FLIGHT = 64  # micro-batches of one prefill step where stages work on several at once
FEW_IN_FLIGHT = 8  # where each place in the cache is a plan, or nobody knows how long they take


class Runner:
    """The forward pass of one model on its ranks. `max_chunk` bounds the tokens of a prefill step."""

    def __init__(self, ranks: Ranks, hp: HParams, family: Family, max_chunk: int) -> None:
        self.hp = hp
        self.max_chunk = max_chunk
        self.stats = RunnerStats()
        self._family = family
        self._plans = PlanCache([])
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
        self._computes_on_cpus = all(rank.backend.device.kind == "cpu" for rank in ranks.ranks)
        self._reserve()

    def _reserve(self) -> None:
        """Size the allocator by the largest shapes of requests, so that their plans never move it.

        Logits of a whole chunk, as score() wants them, may: stale plans are then made anew.
        """
        n_rows, n_slots = self._cache.n_rows, self._cache.n_slots
        self._can_move = True
        for shape in (
            PlanShape(min(self.max_chunk, n_rows), 1, 0, n_rows, 1),
            PlanShape(1, n_slots, 0, n_rows, n_slots),
        ):
            plan = self._make(shape, measure_only=True)
            self._can_move &= plan.can_move
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
        most = MAX_IN_FLIGHT if self._can_move else FEW_IN_FLIGHT
        n, n_first = (most, FEW_IN_FLIGHT) if self._ranks.is_split_by_layer else (1, 1)
        max_read = max(1, min(self.max_chunk, MAX_READ_BYTES // (4 * self.hp.n_vocab)))
        return Limits(self.max_chunk * n, self.max_chunk * n_first, self.max_chunk // 2, max_read)

    def time_prefill(self, n_tokens: int) -> float:
        """Seconds of a step with that many tokens of an empty cache, which it leaves empty."""
        n_tokens = min(n_tokens, self._cache.n_rows)
        ids = np.random.default_rng(0).integers(0, self.hp.n_vocab, n_tokens).tolist()
        place = Place(0, 0, ids)
        shape = self._prefill_shape(place, 0)
        plan = self._plan(shape)
        plan.move(shape.slot0, shape.n_kv)
        self._ranks.expose(0, 1, shape.n_kv)
        plan.fill([place], (), self._embed)
        plan.feeds["kv_rows"][:] = self._cache.trash_row
        plan.step()
        start = time.perf_counter()
        plan.step()
        return time.perf_counter() - start

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
            plan = self._moved(self._decode_shape(places))
            return self._taken(self._run(plan, places, ()), places, plan)
        next_places = [Place(p.slot, p.start + 1, p.ids) for p in places if p.slot in go_on]
        here = 1, chain.plan.shape.n_seq, chain.plan.slot0, chain.plan.n_kv
        is_followed = bool(next_places) and self._decode_shape(next_places)[:4] == here
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
        plan = self._moved(self._decode_shape(places))
        relay = plan.relay
        if relay is None or not relay.is_ready:
            return None
        chain = Chain(plan, relay, self._cache.trash_row, self._cache.n_rows)
        chain.begin(places)
        return chain

    def _decode_shape(self, places: Sequence[Place]) -> PlanShape:
        slot0, n_seq = self._group(places)
        return PlanShape(1, n_seq, slot0, self._window(max(p.start for p in places) + 1, 1), n_seq)

    def _taken(self, logits: np.ndarray | Logits, places: Sequence[Place], plan: Plan) -> np.ndarray | Logits:
        """The rows of these places of a decode step."""
        at = [p.slot - plan.slot0 for p in places]
        if len(at) == plan.shape.n_seq:
            return logits
        return logits.take(at) if isinstance(logits, Logits) else logits[at]

    def prefill(self, place: Place, out_rows: Sequence[int], *, is_hidden: bool = False) -> np.ndarray | Logits:
        """Evaluate a chunk and return the logits of some of its tokens, [len(out_rows), n_vocab]."""
        if len(place.ids) > self.max_chunk:
            return self._pipelined(place, out_rows)
        n_out = len(out_rows) if len(out_rows) <= 1 else padded_length(len(place.ids), self.max_chunk)
        shape = self._prefill_shape(place, n_out)._replace(is_hidden=is_hidden)
        n = shape.n_tokens
        padding = [0] * (n_out - len(out_rows))
        logits = self._step(shape, [place], [*out_rows, *padding])
        if isinstance(logits, Logits):
            if len(out_rows) == 1:
                return logits
            logits = logits.rows()
        return logits[: len(out_rows)] if n_out != n or n == 1 else logits[list(out_rows)]

    def _prefill_several(self, places: Sequence[Place], wants: Sequence[bool]) -> np.ndarray | Logits:
        """Evaluate chunks of neighbouring slots together, padded to the longest."""
        n = padded_length(max(len(p.ids) for p in places), self.max_chunk)
        slot0, n_seq = self._group(places)
        n_kv = self._window(max(p.start + len(p.ids) for p in places), n)
        at = [p.slot - slot0 for p, is_wanted in zip(places, wants) if is_wanted]
        out_rows = [0] * (n_seq if at else 0)
        for place in places:
            if at:
                out_rows[place.slot - slot0] = (place.slot - slot0) * n + len(place.ids) - 1
        logits = self._step(PlanShape(n, n_seq, slot0, n_kv, len(out_rows)), places, out_rows)
        return logits.take(at) if isinstance(logits, Logits) else logits[at]

    def _prefill_shape(self, place: Place, n_out: int, lane: int = 0) -> PlanShape:
        n = padded_length(len(place.ids), self.max_chunk)
        end = place.start + len(place.ids)
        return PlanShape(n, 1, place.slot, self._window(end, n), n_out, lane)

    def _group(self, places: Sequence[Place]) -> tuple[int, int]:
        """The slots that take part so that these do; on CPUs no more, since each costs what a token costs."""
        first, last = places[0].slot, places[-1].slot
        if self._can_move and self._computes_on_cpus:
            return first, last - first + 1
        return slot_group(first, last, self._cache.n_slots, can_move=self._can_move)

    def _window(self, end: int, n_tokens: int) -> int:
        return window_length(end, n_tokens, self._cache.n_rows, can_move=self._can_move)

    def _pipelined(self, place: Place, out_rows: Sequence[int]) -> np.ndarray | Logits:
        """Evaluate micro-batches with every stage busy; the logits of the last token, if it is in out_rows.

        Stages take them in order from their queues. A plan's host arrays may change when its step
        before is done on the last stage, hence one lane more than stages.
        """
        group = self._ranks.group
        assert group is not None and self._ranks.is_split_by_layer, "only stages take more than a chunk"
        size, n_lanes = self.max_chunk, group.n_ranks + 1
        starts = range(0, len(place.ids), size)
        pieces = [Place(place.slot, place.start + s, place.ids[s : s + size]) for s in starts]
        outs: list[list[int]] = [[] for _ in pieces]
        outs[-1] = [row - starts[-1] for row in out_rows]
        shapes = [self._prefill_shape(p, len(out), k % n_lanes) for k, (p, out) in enumerate(zip(pieces, outs))]
        self._plans.kept = {self._key(shape) for shape in shapes}
        try:
            plans = [self._plan(shape) for shape in shapes]  # nothing is built or freed while steps are in flight
            self._ranks.expose(place.slot, 1, shapes[-1].n_kv)
            start = time.perf_counter()
            for k, (plan, shape, piece, out) in enumerate(zip(plans, shapes, pieces, outs)):
                group.wait(n_lanes - 1)
                self.stats.n_steps += k >= n_lanes - 1  # whoever watches sees that it goes on
                plan.move(shape.slot0, shape.n_kv)
                plan.fill([piece], out, self._embed)
                plan.post()
                self._pause()
            plans[-1].finish()
        except BaseException:
            if not group.closed:
                group.wait()
            raise
        finally:
            self._plans.kept = ()
        self.stats.native_s += time.perf_counter() - start
        self.stats.n_steps += min(len(plans), n_lanes - 1)
        return self._logits(plans[-1])

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
        self._pause()
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

    def _key(self, shape: PlanShape) -> PlanShape:
        """The shape that its plan is made for."""
        return shape._replace(slot0=0, n_kv=self._cache.n_rows) if self._can_move else shape

    def _plan(self, shape: PlanShape) -> Plan:
        key = self._key(shape)
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
            if shape.n_tokens == 1:
                found[plan.replay] += 1
        return found

    def profile(self, n_tokens: int, n_seq: int, n_past: int) -> StepProfile:
        """Where the time of a step goes that adds n_tokens to each of n_seq sequences of n_past tokens."""
        self.settle()
        n = padded_length(n_tokens, self.max_chunk)
        shape = PlanShape(n, n_seq, 0, self._window(n_past + n, n), n_seq if n == 1 else 1)
        return step_profile(self._ranks, self.hp, self._family.forward, shape, self._embed)

    def close(self) -> None:
        """Free the plans."""
        self.settle()
        self._plans.clear()
