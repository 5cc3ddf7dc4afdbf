"""Groups of CPU ranks: collectives against numpy, the design's example, faults that must not hang."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_transport import FakeTransport

import pyggml as gg
from pyggml._ffi import lib

RNG = np.random.default_rng(5)


def group_of(n: int, **options: Any) -> gg.Group:
    return gg.Group(["cpu"] * n, threads=1, **options)


@pytest.mark.parametrize("n_ranks", [2, 3, 5, 8, 16])
@pytest.mark.parametrize("n", [1, 7, 4096, 70001])
def test_all_reduce_is_the_sum_in_rank_order_on_every_rank(n_ranks: int, n: int) -> None:
    parts = [RNG.standard_normal((1, n)).astype("f4") for _ in range(n_ranks)]
    right = parts[0].copy()
    for part in parts[1:]:
        right += part
    with group_of(n_ranks) as group:
        graph = group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, n)) * 1.0)))
        graph.run(x=parts)
        for rank in range(n_ranks):
            assert np.array_equal(graph.outputs(rank)["y"], right)
        graph.close()


def test_a_layer_cut_over_ranks_equals_the_whole() -> None:
    up, down = RNG.standard_normal((96, 64)).astype("f4"), RNG.standard_normal((32, 96)).astype("f4")
    x = RNG.standard_normal((5, 64)).astype("f4")

    def layer(g: gg.RankGraph, rank: int) -> gg.Tensor:
        hidden = gg.silu(g.input("x", (5, 64)) @ g.weight(up, cut="out").T)
        return g.output("y", g.all_reduce(hidden @ g.weight(down, cut="in").T))

    hidden = x @ up.T
    right = (hidden / (1 + np.exp(-hidden))) @ down.T
    for n_ranks in (2, 3, 4):
        with group_of(n_ranks) as group, group.compile(layer) as graph:
            for _ in range(3):
                assert np.allclose(graph.run(x=x)["y"], right, rtol=1e-4, atol=1e-4)
            assert group.n_reduces() == 3


@pytest.mark.parametrize(("kind", "n"), [("q8_0", 192), ("q4_K", 512), ("f16", 96)])
def test_cut_arrays_are_quantised_as_the_whole_is(kind: str, n: int) -> None:
    up, down = RNG.standard_normal((n, 64)).astype("f4"), RNG.standard_normal((32, n)).astype("f4")
    x = RNG.standard_normal((5, 64)).astype("f4")

    def layer(g: gg.RankGraph, rank: int) -> gg.Tensor:
        hidden = g.input("x", (5, 64)) @ g.weight(up, type="f16", cut="out").T
        return g.output("y", g.all_reduce(hidden @ g.weight(down, type=kind, cut="in").T))

    results = []
    for n_ranks in (1, 2):
        with gg.Group(["cpu"] * n_ranks, threads=1) as group, group.compile(layer) as graph:
            results.append(graph.run(x=x)["y"])
    assert np.allclose(results[0], results[1], rtol=1e-3, atol=0.05)


def test_sums_are_counted_and_timed() -> None:
    def build(graph: gg.RankGraph, rank: int) -> None:
        graph.output("y", graph.all_reduce(graph.input("x", (64,)) * 1.0))

    with gg.Group(["cpu", "cpu"], threads=1) as group:
        with group.compile(build) as graph:
            for _ in range(5):
                graph.run(x=np.ones(64, np.float32))
        assert (group.n_reduces(0), group.n_reduces(1)) == (5, 5)
        assert 0 < group.reduce_s(0) < 60


def test_two_reduces_with_work_between_use_each_sum_once() -> None:
    def twice(g: gg.RankGraph, rank: int) -> None:
        first = g.all_reduce(g.input("x", (1, 8)) * 1.0)
        g.output("y", g.all_reduce(first * 2.0) + first)

    with group_of(3) as group, group.compile(twice) as graph:
        x = np.arange(8, dtype="f4")[None]
        for _ in range(20):
            assert np.array_equal(graph.run(x=x)["y"], 3 * x + 3 * 6 * x)


def test_gather_broadcast_send_and_recv() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (2, 4))
        g.output("all", g.all_gather(x * 1.0) * 1.0)
        g.output("first", g.broadcast(x * 1.0, root=1) * 1.0)
        if rank == 0:
            g.send(x + x, to=2)
        if rank == 2:
            g.output("got", g.recv((2, 4), source=0) * 1.0)

    parts = [np.full((2, 4), rank + 1, "f4") for rank in range(3)]
    with group_of(3) as group, group.compile(build) as graph:
        for _ in range(5):
            graph.run(x=parts)
            for rank in range(3):
                outputs = graph.outputs(rank)
                assert np.array_equal(outputs["all"], np.stack(parts))
                assert np.array_equal(outputs["first"], parts[1])
            assert np.array_equal(graph.outputs(2)["got"], 2 * parts[0])


def test_what_nobody_reads_still_arrives_somewhere() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (2, 4))
        g.all_gather(x * 1.0)
        g.broadcast(x * 1.0, root=1)
        if rank == 0:
            g.send(x + x, to=1)
            g.send(x * 3.0, to=1)
        else:
            g.recv((2, 4), source=0)
            g.output("got", g.recv((2, 4), source=0))
        g.output("z", x - 1.0)

    x = np.arange(8, dtype="f4").reshape(2, 4)
    with group_of(2) as group, group.compile(build) as graph:
        for _ in range(3):
            assert np.array_equal(graph.run(x=x)["z"], x - 1)
            assert np.array_equal(graph.outputs(1)["got"], 3 * x)


def test_stages_overlap_several_runs_in_order() -> None:
    def stage(g: gg.RankGraph, rank: int) -> None:
        if rank == 0:
            g.send(g.input("x", (1, 4)) + 1.0, to=1)
        else:
            g.output("y", g.recv((1, 4), source=0) * 2.0)

    with group_of(2) as group, group.compile(stage) as graph:
        for i in range(10):
            assert np.array_equal(
                graph.run(x=np.full((1, 4), i, "f4"))["y"], np.full((1, 4), 2 * (i + 1), "f4")
            )


def test_states_of_ranks_persist() -> None:
    def count(g: gg.RankGraph, rank: int) -> None:
        total = g.state("total", (1, 4))
        g.output("y", gg.copy(total + g.all_reduce(g.input("x", (1, 4)) * 1.0), total))

    with group_of(2) as group, group.compile(count) as graph:
        for i in range(1, 4):
            assert np.array_equal(graph.run(x=np.ones((1, 4), "f4"))["y"], np.full((1, 4), 2 * i, "f4"))


def test_error_in_one_ranks_function_is_raised_as_it_is() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        g.output("y", g.all_reduce(g.input("x", (1, 4)) * 1.0))
        if rank == 1:
            raise LookupError("planted")

    with group_of(2) as group:
        with pytest.raises(LookupError, match="planted"):
            group.compile(build)
        with group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, 4)) * 1.0))) as graph:
            assert graph.run(x=np.ones((1, 4), "f4"))["y"][0, 0] == 2


def lone_send(g: gg.RankGraph, rank: int) -> None:
    x = g.output("y", g.input("x", (1, 4)) * 1.0)
    if rank == 0:
        g.send(x, to=1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda g, r: g.output("y", g.all_reduce(g.input("x", (1, 4 + r)) * 1.0)), "all ranks need the same"),
        (lambda g, r: (g.all_reduce if r else g.do)(g.input("x", (1, 4)) * 1.0), "all ranks need the same"),
        (lone_send, "rank 0 sends"),
        (lambda g, r: g.recv((1, 4), source=r), "cannot recv"),
        (lambda g, r: g.broadcast(g.input("x", (1, 4)) * 1.0, root=7), "root of 0 to 1"),
    ],
)  # fmt: skip
def test_ranks_that_disagree_are_refused_before_they_could_wait(
    build: Callable[..., Any], words: str
) -> None:
    with group_of(2) as group, pytest.raises(gg.ShapeError, match=words):
        group.compile(build)


def test_a_rank_that_never_comes_ends_the_run_at_the_deadline() -> None:
    with group_of(2, deadline_s=0.3) as group:
        graph = group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, 4)) * 1.0)))
        graph._runs[1].plan = gg._ffi.ffi.NULL  # type: ignore[attr-defined]
        with pytest.raises(gg.ComputeError, match=r"rank 0 waited 0\.3 s in all_reduce"):
            graph.run(x=np.ones((1, 4), "f4"))
        assert group.closed
        with pytest.raises(gg.ClosedError):
            graph.step()
        graph.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pyggml-rank")]


def test_fail_from_outside_ends_a_waiting_run() -> None:
    with group_of(2, deadline_s=60) as group:
        graph = group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, 4)) * 1.0)))
        graph._runs[1].plan = gg._ffi.ffi.NULL  # type: ignore[attr-defined]
        killer = threading.Thread(target=lambda: (time.sleep(0.2), group.fail("stopped by the test")))
        killer.start()
        with pytest.raises(gg.ComputeError, match="stopped by the test"):
            graph.run(x=np.ones((1, 4), "f4"))
        killer.join()
        graph.close()


@pytest.mark.parametrize("n", [0, 17])
def test_number_of_ranks_is_limited(n: int) -> None:
    with pytest.raises(gg.DeviceError, match="1 to 16"):
        group_of(n)


def test_unknown_device_leaves_no_threads() -> None:
    with pytest.raises(gg.DeviceError, match="cuda:99"):
        gg.Group(["cpu", "cuda:99"])
    assert not [t for t in threading.enumerate() if t.name.startswith("pyggml-rank")]


def overwritten(g: gg.RankGraph) -> gg.Tensor:
    """A node that an operation in place would overwrite before a collective takes it."""
    y = g.input("x", (1, 64)) + 1.0
    g.output("s", gg.silu(y))
    return y


def hand_over(g: gg.RankGraph, rank: int) -> None:
    y = overwritten(g)
    if rank == 0:
        g.send(y, to=1)
    else:
        g.output("got", g.recv((1, 64), source=0) * 1.0)


@pytest.mark.parametrize(
    ("build", "factor"),
    [
        (hand_over, 1),
        (lambda g, r: g.output("got", g.broadcast(overwritten(g)) * 1.0), 1),
        (lambda g, r: g.output("got", g.all_gather(overwritten(g)) * 1.0), 1),
        (lambda g, r: g.output("got", g.all_reduce(overwritten(g)) * 1.0), 2),
    ],
)
def test_a_collective_takes_the_node_though_another_reader_works_in_place(
    build: Callable[..., Any], factor: int
) -> None:
    with group_of(2) as group, group.compile(build) as graph:
        got = graph.run(x=np.ones((1, 64), "f4"))["got"]
        assert np.array_equal(got, np.full(got.shape, 2 * factor, "f4"))


def test_collectives_of_weights_and_states_leave_them_as_they_are() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        weight = g.weight(np.full((1, 4), rank + 1, "f4"))
        state = g.state("total", (1, 4))
        g.output("sum", g.all_reduce(weight) * 1.0)
        g.output("view", g.all_reduce(gg.reshape(weight, (4,))) * 1.0)
        g.output("first", g.broadcast(weight) * 1.0)
        g.output("weight", weight * 1.0)
        g.output("state", g.all_reduce(gg.copy(state + 1.0, state)) * 1.0)

    with group_of(2) as group, group.compile(build) as graph:
        for run in range(1, 4):
            graph.run()
            for rank in range(2):
                values = {name: value.flat[0] for name, value in graph.outputs(rank).items()}
                assert values == {"sum": 3, "view": 3, "first": 1, "weight": rank + 1, "state": 2 * run}


def sums(n: int) -> Callable[..., Any]:
    return lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, n)) * 1.0))


@pytest.mark.parametrize("is_posted", [False, True])
def test_threads_with_graphs_of_one_group_take_turns(is_posted: bool) -> None:
    wrong: list[object] = []

    def work(graph: gg.GroupGraph, n: int) -> None:
        try:
            for i in range(100):
                if is_posted:
                    for part in graph.graphs:
                        part.feeds["x"][:] = i
                    graph.post()
                    graph.post()
                    graph.finish()
                    y = graph.outputs(0)["y"]
                else:
                    y = graph.run(x=np.full((1, n), i, "f4"))["y"]
                assert np.array_equal(y, np.full((1, n), 2 * i, "f4"))
        except BaseException as error:
            wrong.append(error)

    with group_of(2, deadline_s=5) as group:
        graphs = [(group.compile(sums(n)), n) for n in (8, 5000)]
        threads = [threading.Thread(target=work, args=pair) for pair in graphs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for graph, _ in graphs:
            graph.close()
    assert not wrong


def test_sums_of_different_sizes_are_refused_when_they_meet() -> None:
    with group_of(2) as group, group.compile(sums(8)) as small, group.compile(sums(5000)) as large:
        small._runs[1] = large._runs[1]
        with pytest.raises(gg.ComputeError, match="different sizes"):
            small.step()


def slow(g: gg.RankGraph, rank: int) -> gg.Tensor:
    x = g.input("x", (512, 512))
    if rank == 1:
        weight = g.weight(np.zeros((512, 512), "f4"))
        for _ in range(150):
            x = x @ weight.T
    return x * 1.0


def slow_sum(g: gg.RankGraph, rank: int) -> gg.Tensor:
    return g.output("y", g.all_reduce(slow(g, rank)))


@pytest.mark.parametrize("is_group", [False, True])
def test_closing_waits_for_a_run_of_another_thread(is_group: bool) -> None:
    ends: list[object] = []

    def work() -> None:
        try:
            while graph.run(x=np.ones((512, 512), "f4")):
                ends.append(None)
        except gg.ClosedError as error:
            ends.append(error)

    group = group_of(2)
    graph = group.compile(slow_sum)
    runner = threading.Thread(target=work)
    runner.start()
    while not ends:
        time.sleep(0.01)
    (group if is_group else graph).close()
    runner.join(60)
    assert isinstance(ends[-1], gg.ClosedError)
    graph.close()
    group.close()


LATE_ELEMENTS = 1000


def late_sum(g: gg.RankGraph, rank: int) -> None:
    g.all_reduce(g.input("late", (1, LATE_ELEMENTS)) * 1.0)
    g.output("y", g.all_reduce(g.input("x", (1, 8)) * 1.0))


def late_send(g: gg.RankGraph, rank: int) -> None:
    g.all_reduce(g.input("late", (1, LATE_ELEMENTS)) * 1.0)
    x = g.input("x", (1, 8)) * 2.0
    if rank == 1:
        g.send(x, to=0)
    else:
        g.output("y", g.recv((1, 8), source=1) * 1.0)


@pytest.mark.parametrize("build", [late_sum, late_send])
def test_a_rank_that_computes_for_longer_than_the_deadline_is_waited_for(build: Callable[..., Any]) -> None:
    deadline_s = 0.02
    late = FakeTransport("late", during=lambda rank: rank == 1 and time.sleep(20 * deadline_s))
    with group_of(2, deadline_s=deadline_s) as group:
        late.join(group, LATE_ELEMENTS)
        with group.compile(build) as graph:
            y = graph.run(x=np.ones((1, 8), "f4"), late=np.ones((1, LATE_ELEMENTS), "f4"))["y"]
    assert np.array_equal(y, np.full((1, 8), 2.0))


def test_ranks_that_wait_for_each_other_end_at_the_deadline() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        got = g.recv((1, 4), source=1 - rank)
        g.send(g.output("y", got * 1.0) * 2.0, to=1 - rank)

    with group_of(2, deadline_s=0.3) as group, group.compile(build) as graph:
        with pytest.raises(gg.ComputeError, match=r"waited 0\.3 s in recv"):
            graph.run()


def test_a_dropped_group_ends_its_threads() -> None:
    group = group_of(2)
    graph = group.compile(sums(8))
    graph.run(x=np.ones((1, 8), "f4"))
    threads, dropped = group._threads, [weakref.ref(group), weakref.ref(graph.graphs[0])]
    del group, graph
    gc.collect()
    assert [ref() for ref in dropped] == [None, None]
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("pause_s", [0.0, 2e-3])
def test_threads_that_look_for_work_by_themselves_do_it_all(pause_s: float) -> None:
    def build(graph: gg.RankGraph, rank: int) -> None:
        graph.output("y", graph.all_reduce(graph.input("x", (8,)) * float(rank + 1)))

    with gg.Group(["cpu", "cpu", "cpu"]) as group:
        lib.pg_group_spin(group.handle, 5e-4)
        with group.compile(build) as graphs:
            for value in range(30):
                np.testing.assert_array_equal(graphs.run(x=np.full(8, value, np.float32))["y"], 6.0 * value)
                time.sleep(pause_s)


def test_ranks_that_compute_one_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(graph: gg.RankGraph, rank: int) -> None:
        x = graph.input("x", (16, 64))
        for _ in range(5):
            x = graph.all_reduce(gg.rms_norm(x) @ graph.weight(np.full((64, 64), rank + 1, np.float32)).T)
        if rank:
            graph.send(x * 1.0, to=0)
        else:
            graph.output("y", x + graph.recv((16, 64), source=1))

    x = RNG.standard_normal((16, 64)).astype(np.float32)
    answers = []
    for said in ("1", "0"):
        monkeypatch.setenv("PYGGML_PARALLEL_RANKS", said)
        with group_of(2) as group, group.compile(build) as graphs:
            assert group.is_serial is lib.pg_group_is_serial(group.handle) is (said == "0")
            answers += [graphs.run(x=x)["y"] for _ in range(3)]
    for answer in answers[1:]:
        np.testing.assert_array_equal(answer, answers[0])
