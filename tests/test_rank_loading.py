"""Ranks are loaded side by side: one progress, the first fault as it was, and nothing left behind."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import pyggml as gg
from pyggml.engine import LLM
from pyggml.engine.rank_loading import RankLoad, load_ranks
from pyggml.engine.weights import Part, Progress, Weights

TWO: dict[str, Any] = {"device": "cpu,cpu", "tp": 2, "threads": 1, "ctx": 256, "parallel": 1}


class Watched(Weights):
    """Weights that remember their instances; `before` is called with a rank's number before it loads."""

    made: list[Watched]
    before: Callable[[int], object]

    def __init__(self, backend: gg.Backend, parts: Sequence[Part], progress: Progress | None = None) -> None:
        number = len(self.made)
        self.made.append(self)
        type(self).before(number)
        super().__init__(backend, parts, progress)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> type[Watched]:
    monkeypatch.setattr(Watched, "made", [], raising=False)
    monkeypatch.setattr(Watched, "before", staticmethod(lambda number: None), raising=False)
    monkeypatch.setattr("pyggml.engine.loading.Weights", Watched)
    return Watched


def threads_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("pyggml-load", "pyggml-rank"))]


def test_ranks_load_at_the_same_time(
    watched: type[Watched], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    both_are_here = threading.Barrier(2, timeout=60)
    monkeypatch.setattr(watched, "before", staticmethod(lambda number: both_are_here.wait()))
    with LLM(tiny("llama"), **TWO) as llm:
        assert len(llm.generate("abc", max_tokens=2, ignore_eos=True).ids) == 2


def test_progress_of_all_ranks_is_one_and_told_in_the_callers_thread(tiny: Callable[..., Path]) -> None:
    told: list[tuple[int, int, threading.Thread]] = []
    with LLM(
        tiny("llama", quant="Q4_0", n_ff=768), **TWO, progress=lambda *n: told.append((*n, threading.current_thread()))
    ) as llm:
        held = sum(p.weights_bytes + p.mapped_bytes for p in llm.plan)
    done = [n for n, _, _ in told]
    assert done == sorted(set(done)) and done[-1] == told[-1][1]
    assert {total for _, total, _ in told} == {told[-1][1]}
    assert told[-1][1] == pytest.approx(held, rel=0.02)
    assert {thread for *_, thread in told} == {threading.current_thread()}


def test_a_ranks_fault_is_raised_as_it_was_and_the_others_are_freed(
    watched: type[Watched], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(number: int) -> None:
        if number == 1:
            raise LookupError("planted")

    monkeypatch.setattr(watched, "before", staticmethod(fail))
    with pytest.raises(LookupError, match="planted"):
        LLM(tiny("llama"), **TWO)
    assert len(watched.made) == 2
    assert [getattr(weights, "_buffers", []) for weights in watched.made] == [[], []]
    assert not threads_left()


def test_an_error_of_the_callers_progress_ends_all_loads(
    watched: type[Watched], tiny: Callable[..., Path]
) -> None:
    def enough(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LLM(tiny("llama"), **TWO, progress=enough)
    assert all(weights._buffers == [] for weights in watched.made)
    assert not threads_left()


def test_a_fault_stops_the_others_at_their_next_tensor() -> None:
    has_failed, n_told = threading.Event(), []

    def fail(progress: Progress) -> Any:
        raise LookupError("planted")

    def go_on(progress: Progress) -> Any:
        for done in range(1000):
            has_failed.wait(0.01)
            progress(done, 1000)
            n_told.append(done)

    with pytest.raises(LookupError, match="planted"):
        load_ranks([RankLoad("a", 1000, go_on), RankLoad("b", 1000, fail)])
    assert len(n_told) < 1000


def test_loads_of_one_lane_follow_one_another() -> None:
    inside, most = [0], [0]

    def load(progress: Progress) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.02)
        inside[0] -= 1
        return object()

    assert len(load_ranks([RankLoad("cuda:0", 1, load)] * 3)) == 3
    assert most == [1]


def test_the_hosts_memory_stays_near_one_tensor_a_rank(tiny: Callable[..., Path]) -> None:
    path = tiny("llama", n_layer=4, n_ff=8192)
    largest = 256 * 8192 * 4 // 2  # a rank's part of a feed-forward matrix, of which each layer has three
    peaks: list[int] = []
    with LLM(path, **TWO):
        pass  # what is loaded once only
    tracemalloc.start()
    try:
        with LLM(path, **TWO, progress=lambda *_: peaks.append(tracemalloc.get_traced_memory()[1])):
            pass
    finally:
        tracemalloc.stop()
    assert largest < peaks[-1] < 2 * largest + 2**20
