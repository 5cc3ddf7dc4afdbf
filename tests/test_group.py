"""Groups of CPU ranks: collectives against numpy, the design's example, faults that must not hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pyggml as gg

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
