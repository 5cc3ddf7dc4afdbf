"""The two banks of a relay, its turns in a group, and faults; stand-ins take the place of what cards do."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml import relay as relay_module
from pyggml._ffi import ffi, lib
from pyggml.relay import Relay

N = 3


class Cards:
    """What the CUDA module and the native begin and end do, with a plain run in place of a begun one."""

    def __init__(self) -> None:
        self.marks: list[int] = []
        self.n_made = 0
        self.fails = 0
        self.api = SimpleNamespace(mark_new=self.mark_new, mark_free=self.mark_free)
        self.lib = SimpleNamespace(
            pg_runs_begin=lib.pg_runs_post,
            pg_runs_end=self.end_in_group,
            pg_group_wait=lib.pg_group_wait,
            pg_run_begin=self.begin,
            pg_run_end=lambda runs: self.fails,
        )

    def mark_new(self, backend: Any, why: Any, size: int) -> Any:
        self.n_made += 1
        self.marks.append(self.n_made)
        return ffi.cast("pgc_mark *", self.n_made)

    def mark_free(self, mark: Any) -> None:
        self.marks.remove(int(ffi.cast("intptr_t", mark)))

    def begin(self, runs: Any) -> int:
        run = runs[0]
        status = lib.pg_plan_run(run.plan, run.inputs, run.n_inputs, run.outputs, run.n_outputs)
        return int(status) or self.fails

    def end_in_group(self, group: Any, runs: Any) -> None:
        if self.fails:
            lib.pg_group_fail(group, lib.PG_FAULT_CLOSED, 0, b"planted")
            runs[0].status = self.fails


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cards]:
    made = Cards()
    monkeypatch.setattr(relay_module, "cuda_api", lambda: made.api)
    monkeypatch.setattr(relay_module, "lib", made.lib)
    yield made
    gc.collect()
    assert made.marks == [], "every mark is freed"


def build(g: gg.RankGraph, rank: int = 0) -> None:
    """Rows of a table by token: what a choice would be."""
    rows = gg.get_rows(g.weight(np.arange(100, dtype=np.float32).reshape(50, 2)), g.input("tokens", (N,), "i32"))
    g.output("chosen", gg.cast(rows * float(1 + rank), "i32"))


def made_relay(graphs: Any, group: gg.Group | None = None) -> Relay:
    return Relay(graphs, group, tokens="tokens", choice="chosen", first_ids=[0] * len(graphs))


@pytest.fixture(params=["alone", "group"])
def relay(request: pytest.FixtureRequest, cards: Cards) -> Iterator[Relay]:
    if request.param == "alone":
        with gg.Backend("cpu") as backend, gg.RankGraph(backend) as graph:
            build(graph)
            graph.build()
            with made_relay([graph]) as made:
                yield made
        return
    with gg.Group(["cpu", "cpu"]) as group, group.compile(build) as compiled:
        with made_relay(compiled.graphs, group) as made:
            yield made


def step(relay: Relay, bank: int, token: int, **options: Any) -> None:
    relay.banks[bank].feeds["tokens"][:] = token
    relay.begin(bank, **options)


def first(relay: Relay, bank: int) -> list[int]:
    return [int(found[0, 0]) for found in relay.banks[bank].results]


def test_banks_take_turns_and_keep_what_they_hold(relay: Relay) -> None:
    factors = [2, 4][: len(relay.banks[0].results)]
    step(relay, 0, 5)
    for bank, token in ((1, 6), (0, 7), (1, 8)):
        step(relay, bank, token)
        assert relay.finish() == 1 - bank
        assert first(relay, 1 - bank) == [(token - 1) * factor for factor in factors]
    assert relay.finish() == 1 and first(relay, 1) == [8 * factor for factor in factors]


def test_a_fed_step_is_sent_everything_but_its_tokens(relay: Relay) -> None:
    for bank in relay.banks:
        assert [run.n_inputs for run in bank.first_runs] == [1] * len(bank.results)
        assert [run.n_inputs for run in bank.fed_runs] == [0] * len(bank.results)
        assert all(run.fed == ffi.NULL for run in bank.first_runs)
        assert all(ffi.string(run.fed.name) == b"tokens" for run in bank.fed_runs)
    marks = [int(ffi.cast("intptr_t", run.mark)) for bank in relay.banks for run in bank.first_runs]
    assert len(set(marks)) == len(marks), "each step of each rank has its own"


def test_a_number_that_is_no_row_is_refused_before_anything_begins(relay: Relay) -> None:
    with pytest.raises(gg.ShapeError, match="holds 50"):
        step(relay, 0, 50)
    step(relay, 0, 49)
    assert relay.finish() == 0 and first(relay, 0)[0] == 98


def test_graphs_do_not_run_beside_a_step_that_was_begun(relay: Relay) -> None:
    step(relay, 0, 5)
    with pytest.raises(gg.ComputeError, match="started and not waited for"):
        relay._graphs[0].check_fresh()
    relay.finish()
    relay._graphs[0].check_fresh()


def test_what_is_dropped_is_waited_for(relay: Relay) -> None:
    step(relay, 0, 5)
    step(relay, 1, 6)
    assert relay.drop() is None
    relay._graphs[0].check_fresh()
    step(relay, 0, 7)
    assert relay.finish() == 0


def test_another_thread_has_the_group_only_when_no_step_is_ahead(cards: Cards) -> None:
    with gg.Group(["cpu", "cpu"]) as group, group.compile(build) as compiled:
        with made_relay(compiled.graphs, group) as relay:
            step(relay, 0, 5)
            step(relay, 1, 6)
            relay.finish()
            had: list[str] = []

            def take() -> None:
                with group.turn():
                    had.append("turn")

            other = threading.Thread(target=take)
            other.start()
            other.join(0.2)
            assert had == [] and not paused_at_once(group)
            relay.finish()
            other.join(10)
            assert had == ["turn"] and paused_at_once(group)


def paused_at_once(group: gg.Group) -> bool:
    found: list[bool] = []

    def look() -> None:
        found.append(group.try_pause())
        if found[0]:
            group.resume()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(10)
    return found[0]


def test_a_fault_closes_the_group_and_is_told_once(cards: Cards) -> None:
    with gg.Group(["cpu", "cpu"]) as group, group.compile(build) as compiled:
        relay = made_relay(compiled.graphs, group)
        step(relay, 0, 5)
        step(relay, 1, 6)
        cards.fails = 1
        fault = relay.drop()
        assert isinstance(fault, gg.ComputeError) and "planted" in str(fault)
        assert group.closed and not relay.is_ready and relay.drop() is None
        with pytest.raises((gg.ClosedError, gg.ComputeError)):
            step(relay, 0, 5)
        relay.close()


def test_a_fault_of_one_device_is_raised_where_it_happened(cards: Cards) -> None:
    with gg.Backend("cpu") as backend, gg.RankGraph(backend) as graph:
        build(graph)
        graph.build()
        with made_relay([graph]) as relay:
            cards.fails = 1
            with pytest.raises(gg.ComputeError, match="failed"):
                step(relay, 0, 5)
            cards.fails = 0
            step(relay, 0, 5)
            cards.fails = 1
            with pytest.raises(gg.ComputeError, match="failed"):
                relay.finish()
            cards.fails = 0
            step(relay, 0, 6)
            assert relay.finish() == 0 and first(relay, 0) == [12]


def test_one_that_is_only_dropped_frees_what_it_had(cards: Cards) -> None:
    with gg.Backend("cpu") as backend, gg.RankGraph(backend) as graph:
        build(graph)
        graph.build()
        relay = made_relay([graph])
        step(relay, 0, 5)
        assert len(cards.marks) == 2
        del relay
        gc.collect()
        assert cards.marks == []
        graph.check_fresh()


def no_tokens(g: gg.RankGraph) -> None:
    g.output("chosen", gg.cast(g.input("x", (N, 2)) * 2.0, "i32"))


def too_few(g: gg.RankGraph) -> None:
    rows = gg.get_rows(g.weight(np.ones((50, 2), np.float32)), g.input("tokens", (N,), "i32"))
    g.output("chosen", gg.cast(rows.reshape(1, 2 * N), "i32"))


def no_choice(g: gg.RankGraph) -> None:
    g.output("y", gg.get_rows(g.weight(np.ones((50, 2), np.float32)), g.input("tokens", (N,), "i32")))


@pytest.mark.parametrize("other", [no_tokens, too_few, no_choice])
def test_graphs_of_another_kind_are_refused(other: Callable[[gg.RankGraph], None], cards: Cards) -> None:
    with gg.Backend("cpu") as backend, gg.RankGraph(backend) as graph:
        other(graph)
        graph.build()
        with pytest.raises(gg.ShapeError, match="a number for each row of a choice"):
            made_relay([graph])
    assert cards.n_made == 0
