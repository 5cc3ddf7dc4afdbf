"""What is closed or dropped while a group's run is in flight waits for it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_transport import FakeTransport

import pyggml as gg

LATE_ELEMENTS = 1000


def group_of(n: int) -> gg.Group:
    return gg.Group(["cpu"] * n, threads=1)


def late_sum(g: gg.RankGraph, rank: int) -> None:
    g.all_reduce(g.input("late", (1, LATE_ELEMENTS)) * 1.0)
    g.output("y", g.all_reduce(g.input("x", (1, 8)) * 1.0))


class Held:
    """Two ranks in a run that goes on until it is let go."""

    def __init__(self, build: Callable[..., Any] = late_sum) -> None:
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.group = group_of(2)
        self.transport = FakeTransport("held", during=self._hold).join(self.group, LATE_ELEMENTS)
        self.graph = self.group.compile(build)
        self.results: list[np.ndarray] = []
        self._thread = threading.Thread(target=self._run)

    def _hold(self, rank: int) -> None:
        self.has_begun.set()
        assert self.may_end.wait(60)

    def _run(self) -> None:
        inputs = {"x": np.ones((1, 8), "f4"), "late": np.ones((1, LATE_ELEMENTS), "f4")}
        self.results.append(self.graph.run(**inputs)["y"])

    def __enter__(self) -> Held:
        self._thread.start()
        assert self.has_begun.wait(60)
        return self

    def let_go(self) -> None:
        self.may_end.set()
        self._thread.join(60)

    def __exit__(self, *exc_info: object) -> None:
        self.let_go()
        self.graph.close()
        self.group.close()


def used_weight(g: gg.RankGraph, rank: int, buffers: list[gg.Buffer]) -> None:
    g.all_reduce(g.input("late", (1, LATE_ELEMENTS)) * 1.0)
    buffers.append(gg.Buffer(g.backend, {"w": ((1, 8), "f32")}))
    buffers[-1]["w"].set(np.ones((1, 8), "f4"))
    g.output("y", g.all_reduce(g.input("x", (1, 8)) * g.use(buffers[-1]["w"])))


@pytest.mark.parametrize("what", ["graph", "buffer"])
def test_closing_a_part_of_a_run_in_flight_waits_for_it(what: str) -> None:
    buffers: list[gg.Buffer] = []
    with Held(lambda g, rank: used_weight(g, rank, buffers)) as held:
        part = held.graph.graphs[1] if what == "graph" else buffers[1]
        closer = threading.Thread(target=part.close)
        closer.start()
        closer.join(0.2)
        assert closer.is_alive() and not part.closed
        held.let_go()
        closer.join(60)
        assert part.closed
        assert np.array_equal(held.results[0], np.full((1, 8), 2.0))
        with pytest.raises(gg.ClosedError):
            held.graph.step()


def test_closing_a_part_waits_for_what_the_same_thread_has_posted() -> None:
    with group_of(2) as group:
        FakeTransport("late", during=lambda rank: time.sleep(0.1)).join(group, LATE_ELEMENTS)
        graph = group.compile(late_sum)
        for rank in graph.graphs:
            rank.fill({"x": np.ones((1, 8), "f4"), "late": np.ones((1, LATE_ELEMENTS), "f4")})
        graph.post()
        graph.post()
        graph.graphs[1].close()
        graph.finish()
        assert np.array_equal(graph.outputs(0)["y"], np.full((1, 8), 2.0))
        graph.close()


def test_what_is_dropped_during_a_run_is_freed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[bool] = []
    with Held() as held:
        release, backend = gg.Buffer._release, held.group.backends[1]

        def noted(buffer: gg.Buffer) -> None:
            if buffer.backend is backend:  # others may be left from earlier tests
                ends.append(held.may_end.is_set())
            release(buffer)

        monkeypatch.setattr(gg.Buffer, "_release", noted)
        gg.Buffer(backend, {"w": ((1, 8), "f32")})
        gc.collect()
        with backend.lock:
            assert not ends
        held.let_go()
        with backend.lock:
            assert ends == [True]
