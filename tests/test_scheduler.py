"""The scheduler alone: slots, turns of prefill and decode, reuse of what slots hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pyggml.engine.batch import Batch, Limits, Phase
from pyggml.engine.prefix_cache import PrefixCache
from pyggml.engine.prefix_tree import Ids
from pyggml.engine.prompt_reader import LogitReader, PoolReader
from pyggml.engine.request import Delta, FinishReason, Request
from pyggml.engine.sampler import Sampled, Sampler
from pyggml.engine.sampling_params import SamplingParams
from pyggml.engine.scheduler import Scheduler


class PlainText:
    """A text stream that tells ids as numbers."""

    stopped = False

    def push(self, id: int) -> str:
        return f"{id} "

    def finish(self) -> str:
        return ""


class FakeRows:
    """The cache as lists of tokens, and files in a dict: what a row attends to can be looked up."""

    def __init__(self, n_slots: int) -> None:
        self.slots: list[list[int]] = [[] for _ in range(n_slots)]
        self.kept: dict[str, list[int]] = {}
        self.fresh: dict[str, Ids] = {}
        self.broken: set[str] = set()
        self.n_copied = 0

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        assert source != slot and stop <= len(self.slots[source])
        self.write(slot, start, self.slots[source][start:stop])
        self.n_copied += stop - start

    def load(self, key: str, slot: int, start: int, stop: int) -> bool:
        if key in self.broken:
            return False
        self.write(slot, start, self.kept[key][start:stop])
        return True

    def save(self, slot: int, ids: Ids) -> None:
        assert self.slots[slot][: len(ids)] == ids.tolist()
        key = f"file {len(self.kept)}"
        self.kept[key], self.fresh[key] = ids.tolist(), ids

    def saved(self) -> dict[str, Ids]:
        fresh, self.fresh = self.fresh, {}
        return fresh

    @property
    def files(self) -> tuple[int, int]:
        return len(self.kept), 0

    def write(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        assert start <= len(self.slots[slot])
        self.slots[slot][start:] = tokens


def made(n_slots: int, max_chunk: int, *, min_shared: int = 2, **options: Any) -> tuple[Scheduler, FakeRows]:
    rows = FakeRows(n_slots)
    cache = PrefixCache(n_slots, rows, min_shared=min_shared, **options)
    return Scheduler(cache, Limits(max_chunk, max_chunk, max_chunk, max_chunk, max_chunk), n_slots), rows


def request(ids: list[int], events: list[Delta] | None = None, max_new: int = 4) -> Request:
    params = SamplingParams(temperature=0)
    sink = [] if events is None else events
    return Request(
        prompt_ids=ids, params=params, sampler=Sampler(params, n_vocab=100), text=PlainText(),  # type: ignore[arg-type]
        emit=sink.append, max_new=max_new, stop_ids=frozenset(),
    )  # fmt: skip


def advance(scheduler: Scheduler, batch: Batch, token: int = 7, rows: FakeRows | None = None) -> None:
    """What the engine does in a step, with a made-up token; with `rows` every token must see those before it."""
    for row in batch.rows:
        if rows is not None:
            assert rows.slots[row.slot][: row.start] == row.request.tokens(0, row.start)
            rows.write(row.slot, row.start, row.ids)
    scheduler.ran(batch, 0.001)
    for row in batch.rows:
        if row.wants_logits:
            if row.request.take(Sampled(token)):
                row.request.tell(Sampled(token))
            if row.request.output_ids and len(row.request.output_ids) >= row.request.max_new:
                scheduler.release(row.request)


def test_long_prompts_go_in_chunks_and_only_the_last_wants_logits() -> None:
    scheduler, _ = made(1, 4)
    scheduler.add(request(list(range(10))))
    seen = []
    for _ in range(3):
        batch = scheduler.schedule()
        assert batch is not None and batch.phase is Phase.PREFILL
        seen.append((batch.rows[0].start, batch.rows[0].ids, batch.rows[0].wants_logits))
        advance(scheduler, batch)
    assert seen == [(0, (0, 1, 2, 3), False), (4, (4, 5, 6, 7), False), (8, (8, 9), True)]
    batch = scheduler.schedule()
    assert batch is not None and batch.phase is Phase.DECODE and batch.rows[0].ids == (7,)


@pytest.mark.parametrize(
    ("first", "max_rows", "expected"),
    [
        (0, None, [(0, 64, True), (64, 128, True), (128, 150, True)]),
        (100, None, [(0, 64, False), (64, 100, False), (100, 150, True)]),
        (100, 40, [(0, 40, False), (40, 80, False), (80, 100, False), (100, 140, True), (140, 150, True)]),
        (149, None, [(0, 64, False), (64, 128, False), (128, 149, False), (149, 150, True)]),
    ],
)
def test_given_tokens_are_read_in_steps_that_do_not_depend_on_time(
    first: int, max_rows: int | None, expected: list[tuple[int, int, bool]]
) -> None:
    scheduler, _ = made(1, 64)
    ids = list(range(150))
    scheduler.add(replace(request(ids, max_new=0), reader=LogitReader(ids, whole=True, first=first, max_rows=max_rows)))
    seen = []
    for _ in expected:
        batch = scheduler.schedule()
        assert batch is not None
        (row,) = batch.rows
        seen.append((row.start, row.start + len(row.ids), row.is_read))
        scheduler.ran(batch, 100.0)  # much longer than steps may take
    assert seen == expected


@pytest.mark.parametrize(("asked", "length"), [(None, 8), (5, 5), (16, 16), (32, 32), (100, 32)])
def test_results_of_all_tokens_stay_within_what_is_evaluated_as_one(asked: int | None, length: int) -> None:
    scheduler, _ = made(1, 64)
    scheduler.limits = Limits(64, 64, 32, 8, 32)
    ids = list(range(150))
    scheduler.add(replace(request(ids, max_new=0), reader=LogitReader(ids, whole=True, max_rows=asked)))
    batch = scheduler.schedule()
    assert batch is not None and len(batch.rows[0].ids) == length


def test_other_prompts_are_read_in_steps_that_end_in_time() -> None:
    scheduler, _ = made(1, 64)
    ids = list(range(150))
    scheduler.add(replace(request(ids, max_new=0), reader=PoolReader("mean")))
    lengths = []
    while sum(lengths) < 150:
        batch = scheduler.schedule()
        assert batch is not None
        lengths.append(len(batch.rows[0].ids))
        scheduler.ran(batch, 100.0)
    assert lengths == [64, 32, 32, 22]


def test_prefill_and_decode_take_turns() -> None:
    scheduler, _ = made(2, 2)
    scheduler.add(request([1], max_new=50))
    batch = scheduler.schedule()
    assert batch is not None
    advance(scheduler, batch)
    scheduler.add(request(list(range(8))))
    phases = []
    for _ in range(6):
        batch = scheduler.schedule()
        assert batch is not None
        phases.append(batch.phase)
        advance(scheduler, batch)
    assert phases == [Phase.DECODE, Phase.PREFILL] * 3 or phases == [Phase.PREFILL, Phase.DECODE] * 3


def test_more_requests_than_slots_wait_in_order() -> None:
    scheduler, _ = made(2, 8)
    requests = [request([i, i]) for i in range(4)]
    for r in requests:
        scheduler.add(r)
    scheduler.schedule()
    assert sorted(r.slot for r in requests[:2] if r.slot is not None) == [0, 1]
    assert [r.slot for r in requests[2:]] == [None, None]
    scheduler.release(requests[0])
    scheduler.schedule()
    assert requests[2].slot == 0 and requests[3].slot is None


@pytest.mark.parametrize(
    ("second", "n_cached"),
    [([1, 2, 3, 4, 5, 9], 5), ([1, 2, 3, 4], 3), ([1, 2, 3], 2), ([9, 2, 3], 0), ([1], 0)],
)
def test_reuse_keeps_the_common_beginning_and_evaluates_the_last_token(
    second: list[int], n_cached: int
) -> None:
    scheduler, _ = made(1, 8)
    first = request([1, 2, 3, 4, 5], max_new=1)
    scheduler.add(first)
    batch = scheduler.schedule()
    assert batch is not None
    advance(scheduler, batch)
    later = request(second)
    scheduler.add(later)
    batch = scheduler.schedule()
    assert batch is not None
    assert (later.n_cached, batch.rows[0].start) == (n_cached, n_cached)
    assert batch.rows[0].ids == tuple(second[n_cached:])


def test_a_failed_request_leaves_nothing_to_reuse() -> None:
    scheduler, _ = made(1, 8)
    first = request([1, 2, 3])
    scheduler.add(first)
    scheduler.schedule()
    scheduler.release(first, keep=False)
    later = request([1, 2, 3])
    scheduler.add(later)
    scheduler.schedule()
    assert later.n_cached == 0


def test_a_fault_while_a_request_gets_its_slot_does_not_lose_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, _ = made(2, 8)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the copy failed")

    monkeypatch.setattr(scheduler.cache, "place", fail)
    first = request([1, 2, 3])
    scheduler.add(first)
    with pytest.raises(RuntimeError, match="the copy failed"):
        scheduler.schedule()
    assert list(scheduler.requests()) == [first]


def test_random_operations_never_share_a_slot_or_lose_a_request() -> None:
    rng = random.Random(3)
    scheduler, rows = made(3, 4, min_stored=3)
    events: list[Delta] = []
    n_added = 0
    for _ in range(2000):
        action = rng.random()
        if action > 0.99 and rows.kept:
            rows.broken.add(rng.choice(list(rows.kept)))
        if action < 0.2 and n_added < 200:
            beginning = [rng.randrange(2)] * rng.randrange(6)
            prompt = beginning + [rng.randrange(5) for _ in range(rng.randrange(1, 6))]
            scheduler.add(request(prompt, events, rng.randrange(1, 5)))
            n_added += 1
        elif action < 0.25 and not scheduler.is_idle:
            victim = rng.choice(list(scheduler.requests()))
            scheduler.release(victim)
            victim.finish(FinishReason.ABORT)
        else:
            batch = scheduler.schedule()
            if batch is not None:
                slots = [row.slot for row in batch.rows]
                assert slots == sorted(set(slots))
                advance(scheduler, batch, rng.randrange(5), rows)
        assert len({r.slot for r in scheduler.running.values()}) == len(scheduler.running) <= 3
    while (batch := scheduler.schedule()) is not None:
        advance(scheduler, batch, 1, rows)
    assert scheduler.is_idle
    assert sum(event.finish_reason is not None for event in events) == n_added
    assert rows.n_copied and rows.kept
