"""Groups of Vulkan ranks, and of Vulkan and other ranks: collectives, and a layer cut over them, against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as gg

OTHERS = ["cpu", *(d.name for d in gg.devices() if d.name == "cuda:0")]
GROUPS = [
    ("vulkan:0", "vulkan:1"),
    ("vulkan:0", "vulkan:0"),
    *((other, "vulkan:1") for other in OTHERS),
    ("vulkan:1", *OTHERS, "vulkan:0"),
]
RNG = np.random.default_rng(5)
named = pytest.mark.parametrize("devices", GROUPS, ids=",".join)


@named
@pytest.mark.parametrize("n", [1, 7, 70001])
def test_all_reduce_is_the_sum_in_rank_order_on_every_rank(devices: tuple[str, ...], n: int) -> None:
    parts = [RNG.standard_normal((1, n)).astype("f4") for _ in devices]
    right = parts[0].copy()
    for part in parts[1:]:
        right += part
    with (
        gg.Group(devices, threads=1) as group,
        group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, n)) * 1.0))) as graph,
    ):
        for _ in range(3):
            graph.run(x=parts)
            for rank in range(len(devices)):
                assert np.array_equal(graph.outputs(rank)["y"], right)


@named
def test_gather_broadcast_send_and_recv(devices: tuple[str, ...]) -> None:
    last = len(devices) - 1

    def build(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (2, 5))
        g.output("all", g.all_gather(x * 1.0) * 1.0)
        g.output("first", g.broadcast(x * 1.0, root=last) * 1.0)
        ids = g.input("ids", (3,), "i32")
        g.output("rows", gg.get_rows(x, g.broadcast(ids.cont(), root=0)))
        if rank == 0:
            g.send(x + x, to=last)
        if rank == last:
            g.output("got", g.recv((2, 5), source=0) * 1.0)

    parts = [np.full((2, 5), [[rank + 1], [-rank]], "f4") for rank in range(len(devices))]
    ids = [np.array([1, 0, 1] if rank == 0 else [0, 0, 0], "i4") for rank in range(len(devices))]
    with gg.Group(devices, threads=1) as group, group.compile(build) as graph:
        for _ in range(5):
            graph.run(x=parts, ids=ids)
            for rank, part in enumerate(parts):
                outputs = graph.outputs(rank)
                assert np.array_equal(outputs["all"], np.stack(parts))
                assert np.array_equal(outputs["first"], parts[last])
                assert np.array_equal(outputs["rows"], part[[1, 0, 1]])
            assert np.array_equal(graph.outputs(last)["got"], 2 * parts[0])


@named
@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_a_layer_cut_over_ranks_equals_the_whole(devices: tuple[str, ...], kind: str) -> None:
    up, down = RNG.standard_normal((192, 64)).astype("f4"), RNG.standard_normal((32, 192)).astype("f4")
    x = RNG.standard_normal((5, 64)).astype("f4")
    hidden = x @ up.T
    right = (hidden / (1 + np.exp(-hidden))) @ down.T

    def layer(g: gg.RankGraph, rank: int) -> gg.Tensor:
        hidden = gg.silu(g.input("x", (5, 64)) @ g.weight(up, type=kind, cut="out").T)
        return g.output("y", g.all_reduce(hidden @ g.weight(down, type=kind, cut="in").T))

    with gg.Group(devices, threads=1) as group, group.compile(layer) as graph:
        error = graph.run(x=x)["y"] - right
        assert (error**2).sum() <= (1e-6 if kind == "f32" else 1e-3) * (right**2).sum()


@named
def test_states_of_ranks_persist(devices: tuple[str, ...]) -> None:
    def count(g: gg.RankGraph, rank: int) -> None:
        total = g.state("total", (1, 4))
        g.output("y", gg.copy(total + g.all_reduce(g.input("x", (1, 4)) * 1.0), total))

    with gg.Group(devices, threads=1) as group, group.compile(count) as graph:
        for i in range(1, 4):
            right = np.full((1, 4), i * len(devices), "f4")
            assert np.array_equal(graph.run(x=np.ones((1, 4), "f4"))["y"], right)


def test_a_fault_on_a_vulkan_rank_ends_the_group() -> None:
    with gg.Group(["vulkan:0", "cpu"], threads=1, deadline_s=0.5) as group:
        graph = group.compile(lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, 4)) * 1.0)))
        graph._runs[1].plan = gg._ffi.ffi.NULL  # type: ignore[attr-defined]
        with pytest.raises(gg.ComputeError, match="in all_reduce"):
            graph.run(x=np.ones((1, 4), "f4"))
        graph.close()
