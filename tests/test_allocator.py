"""Graphs that share memory for their results: one at a time, laid out anew when it moved."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from graphs import cpu

import pyggml as gg
from pyggml._ffi import ffi, lib


def test_graphs_that_share_memory_need_that_of_the_largest() -> None:
    with gg.Allocator(cpu()) as allocator, gg.Graph(cpu(), allocator=allocator) as large:
        large.output("y", large.input("x", (100_000,)) * 2)
        large.reserve()
        reserved = allocator.n_bytes
        assert 400_000 <= reserved < 1_000_000
        graphs = []
        for n in (10, 1000, 100_000):
            small = gg.Graph(cpu(), allocator=allocator)
            small.output("y", small.input("x", (n,)) * 3)
            graphs.append(small.build())
        assert allocator.n_bytes == reserved
        for graph, n in zip(graphs, (10, 1000, 100_000)):
            assert graph.run(x=np.ones(n))["y"].tolist() == [3] * n
            graph.close()


def test_results_begin_with_a_cache_line_whatever_lies_before_them() -> None:
    with gg.Graph(cpu()) as g:
        odd = [g.input(f"odd{n}", (n,)) for n in (1, 9, 17, 25)]
        for n, x in enumerate(odd):
            g.output(f"y{n}", x * 2)
        g.output("y", g.input("x", (33,)) * 3)
        g.build()
        nodes = [lib.ggml_graph_node(g._graph, i) for i in range(g.n_nodes)]
        places = {int(ffi.cast("uintptr_t", node.data)) for node in [*nodes, *(x.handle for x in odd)]}
        assert len(places) > 4
        assert [place % 64 for place in places] == [0] * len(places)


def test_a_graph_whose_memory_moved_must_be_built_anew() -> None:
    with gg.Allocator(cpu()) as allocator, gg.Graph(cpu(), allocator=allocator) as first:
        y = first.output("y", first.input("x", (10,)) * 2)
        first.run(x=np.ones(10))
        assert not first.is_stale
        with gg.Graph(cpu(), allocator=allocator) as second:
            second.output("y", second.input("x", (100_000,)) * 3)
            second.run(x=np.ones(100_000))
            assert first.is_stale
            for use in (lambda: first.run(x=np.ones(10)), first.step, lambda: first.start(x=np.ones(10))):
                with pytest.raises(gg.ComputeError, match="memory of this graph moved"):
                    use()
            with pytest.raises(gg.ShapeError, match="has no memory now"):
                y.numpy()
            assert second.run(x=np.ones(100_000))["y"][0] == 3


def test_graphs_that_share_memory_do_not_run_between_start_and_wait() -> None:
    with gg.Allocator(cpu()) as allocator, gg.Graph(cpu(), allocator=allocator) as a:
        with gg.Graph(cpu(), allocator=allocator) as b:
            for graph in (a, b):
                graph.output("y", graph.input("x", (4,)) * 2)
                graph.build()
            a.start(x=np.ones(4))
            with pytest.raises(gg.ComputeError, match="started and not waited for"):
                b.run(x=np.ones(4))
            with pytest.raises(gg.ComputeError, match="no run of this graph was started"):
                b.wait()
            assert a.wait()["y"][0] == 2
            assert b.run(x=np.ones(4))["y"][0] == 2


def test_memory_that_is_not_there_is_an_error() -> None:
    g = gg.Graph(cpu())
    g.output("y", gg.sum_rows(gg.repeat(g.input("x", (1,)), (2**20, 2**30))))
    with pytest.raises(gg.AllocationError, match="no memory for a graph's results"):
        g.run(x=[1])


def test_an_allocator_that_failed_leaves_earlier_graphs_stale_and_works_again() -> None:
    with gg.Allocator(cpu()) as allocator, gg.Graph(cpu(), allocator=allocator) as first:
        first.output("y", first.input("x", (10,)) * 2)
        first.run(x=np.ones(10))
        with gg.Graph(cpu(), allocator=allocator) as huge, pytest.raises(gg.AllocationError):
            huge.output("y", gg.sum_rows(gg.repeat(huge.input("x", (1,)), (2**20, 2**30))))
            huge.build()
        assert first.is_stale
        with gg.Graph(cpu(), allocator=allocator) as again:
            again.output("y", again.input("x", (10,)) * 2)
            assert again.run(x=np.ones(10))["y"][0] == 2


def test_the_size_is_not_read_while_another_thread_lays_out() -> None:
    with gg.Allocator(cpu()) as allocator:
        sizes: list[int] = []
        reader = threading.Thread(target=lambda: sizes.append(allocator.n_bytes))
        with allocator.lock:
            reader.start()
            reader.join(0.1)
            assert not sizes
        reader.join(60)
        assert len(sizes) == 1
