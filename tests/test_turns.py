"""Ranks that take turns on two micro-batches: the same results as one after the other, and sums beside computing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_transport import FakeTransport

import pyggml as gg
from pyggml._ffi import ffi, lib
from pyggml.engine import LLM, GenerationError, micro_batch, rig
from pyggml.engine import runner as runner_module
from pyggml.engine.runner import Runner

WHERE: dict[str, dict[str, Any]] = {
    "tp 2": {"device": "cpu,cpu", "tp": 2},
    "tp 3": {"device": "cpu,cpu,cpu", "tp": 3},
}
PROMPT = [3 + 7 * i % 250 for i in range(500)]
MICRO_BATCH = 64


def opened(monkeypatch: pytest.MonkeyPatch, path: Path, *, takes_turns: bool, **options: Any) -> LLM:
    def open_runner(ranks: Any, hp: Any, family: Any, batch: int | None) -> Runner:
        return Runner(ranks, hp, family, MICRO_BATCH, takes_turns=takes_turns)

    monkeypatch.setattr(rig, "open_runner", open_runner)
    return LLM(path, ctx=600, threads=1, prefix_cache=False, **options)


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gemma3", "qwen2"])
def test_prompts_come_out_bit_for_bit(
    arch: str, where: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for takes_turns in (False, True):
        with opened(monkeypatch, tiny(arch), takes_turns=takes_turns, **WHERE[where]) as llm:
            lengths = (1, MICRO_BATCH, MICRO_BATCH + 1, 2 * MICRO_BATCH, 2 * MICRO_BATCH + 1, 300)
            prompts = [PROMPT[i : i + n] for i, n in enumerate(lengths)]
            answers = [llm.generate([p], temperature=0, ignore_eos=True, max_tokens=4)[0].ids for p in prompts]
            before = llm.stats.n_steps
            scores = llm.score(PROMPT[:300], first=299)
            group = llm._loaded.ranks.group
            assert group is not None
            found.append((answers, scores.tolist(), group.n_reduces(), llm.stats.n_steps - before))
    (alone, in_turns) = found
    assert in_turns[:3] == alone[:3]
    assert in_turns[3] < alone[3], "two micro-batches are one step"


@pytest.mark.parametrize("where", WHERE)
def test_halves_of_a_prompt_come_out_as_the_whole(
    where: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(monkeypatch, tiny("llama", quant="F32"), takes_turns=True, **WHERE[where]) as llm:
        runner = llm.probe._runner

        def asked() -> tuple[list[tuple[int, ...]], np.ndarray, int]:
            before = llm.stats.n_steps
            answers = [
                llm.generate([PROMPT[i : i + n]], temperature=0, ignore_eos=True, max_tokens=4)[0].ids
                for i, n in enumerate((1, 15, 16, 17, 40, 63, 64, 65, 127, 128))
            ]
            rows = [llm.score(PROMPT[:n], logits=True, first=first) for n, first in ((50, 49), (50, 3), (64, 0))]
            return answers, np.concatenate(rows), llm.stats.n_steps - before

        answers, rows, n_steps = asked()
        pairs = count_pairs(monkeypatch)
        runner.halved_from = 16
        halved, halved_rows, n_halved = asked()
        assert halved == answers and n_halved == n_steps
        assert ((halved_rows - rows) ** 2).sum() <= 1e-12 * (rows**2).sum()
        # Halves are rounded up as all chunks are; where logits of more than the last token are wanted there are none.
        prompts = [(8, 8), (16, 1), (24, 16), (32, 31), (32, 32), (40, 25), (64, 63), (64, 64)]
        assert pairs == [*prompts, (32, 17)]


def count_pairs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The tokens of both micro-batches of each pair that is run, told by what follows."""
    pairs: list[tuple[int, int]] = []

    def noted(batches: Any, turns: Any, meanwhile: Any) -> None:
        if len(batches) == 2:
            first, second = (len(batch.piece.ids) for batch in batches)
            pairs.append((first, second))
        micro_batch.run_in_turns(batches, turns, meanwhile)

    monkeypatch.setattr(runner_module, "run_in_turns", noted)
    return pairs


def test_a_fault_in_a_turn_fails_the_step_and_the_ranks_come_back(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(monkeypatch, tiny("llama"), takes_turns=True, **WHERE["tp 2"]) as llm:
        right = llm.generate([PROMPT[:200]], temperature=0, ignore_eos=True, max_tokens=4)[0].ids
        group = llm._loaded.ranks.group
        assert group is not None
        group.fail("planted")
        with pytest.raises(GenerationError, match="planted"):
            llm.generate([PROMPT[:200]], temperature=0, ignore_eos=True, max_tokens=4)
        assert llm.generate([PROMPT[:200]], temperature=0, ignore_eos=True, max_tokens=4)[0].ids == right
        assert llm.status().n_rebuilds == 1


def chain(state: list[gg.Tensor], n_sums: int, *, writes: bool) -> Callable[[gg.RankGraph, int], None]:
    """Sums one after the other; the first of a pair leaves what it computed, the second adds what it finds."""

    def build(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (4,))
        kept = g.use(state[rank])
        for i in range(n_sums):
            x = x * 2.0
            if writes:
                g.do(gg.copy(x, kept[i]))
            else:
                x = x + kept[i]
            x = g.all_reduce(x)
        g.output("y", x * 1.0)

    return build


def pair(group: gg.Group, buffers: list[gg.Buffer], n_sums: int) -> list[gg.GroupGraph]:
    state = [buffer["kept"] for buffer in buffers]
    return [group.compile(chain(state, n_sums, writes=writes)) for writes in (True, False)]


@pytest.fixture
def group() -> Any:
    with gg.Group(["cpu", "cpu"], threads=1) as made:
        yield made


def states(group: gg.Group, n_sums: int) -> list[gg.Buffer]:
    buffers = [gg.Buffer(backend, {"kept": ((n_sums, 4), "f32")}) for backend in group.backends]
    for buffer in buffers:
        buffer.clear()
    return buffers


def test_a_segment_of_the_second_reads_what_the_same_of_the_first_wrote(group: gg.Group) -> None:
    first, second = pair(group, states(group, 3), 3)
    with first, second, gg.Turns(group) as turns:
        for value in (1.0, 5.0):
            for graph in (first, second):
                for part in graph.graphs:
                    part.feeds["x"][:] = value
            turns.post(first, second)
            first.finish()
            kept = [2 * value, 8 * value, 32 * value]
            assert first.outputs(0)["y"][0] == 64 * value
            x = value
            for found in kept:
                x = 2 * (2 * x + found)
            assert second.outputs(0)["y"][0] == second.outputs(1)["y"][0] == x


def test_sums_travel_beside_and_are_joined_before_what_follows_them(group: gg.Group) -> None:
    """The order of what rank 0 asks of its card, told by stand-ins."""
    calls: list[str] = []
    sides = [ffi.cast("pgc_side *", 1 + rank) for rank in range(2)]

    def note(text: str) -> None:
        calls.append(text)

    def begin(side: Any, why: Any, size: int) -> bool:
        if side == sides[0]:
            note("begin")
        return True

    def end(side: Any, lane: int, why: Any, size: int) -> bool:
        if side == sides[0]:
            note(f"end {lane}")
        return True

    def join(side: Any, lane: int, why: Any, size: int) -> bool:
        if side == sides[0]:
            note(f"join {lane}")
        return True

    api = ffi.new("pgc_api *")
    api.side_begin = begin_c = ffi.callback("bool(pgc_side *, char *, size_t)", begin)
    api.side_end = end_c = ffi.callback("bool(pgc_side *, int, char *, size_t)", end)
    api.side_join = join_c = ffi.callback("bool(pgc_side *, int, char *, size_t)", join)
    transport = FakeTransport("fake", during=lambda rank: note("sum") if rank == 0 else None)
    transport.handle.can_capture = True
    transport.join(group, 0)
    first, second = pair(group, states(group, 2), 2)
    with first, second:
        for graph in (first, second):
            for part in graph.graphs:
                layout = part.check_fresh()
                layout._api = api
                lib.pg_plan_use(layout._plan, api, False)
        with group.turn():
            group.post(first, first.beside(second, sides))
        first.finish()
    beside = ["begin", "sum", "end 0"], ["begin", "sum", "end 1"]
    assert calls == [*beside[0], *beside[1], "join 0", *beside[0], "join 1", *beside[1], "join 0", "join 1"]
    assert (begin_c, end_c, join_c) is not None


def test_several_may_be_posted_and_a_fault_of_any_is_told(group: gg.Group) -> None:
    first, second = pair(group, states(group, 2), 2)
    with gg.Turns(group) as turns:
        for graph in (first, second):
            for part in graph.graphs:
                part.feeds["x"][:] = 1.0
        turns.post(first, second)
        turns.post(first, second)
        first.finish()
        assert first.outputs(0)["y"][0] == 16.0
        turns.post(first, second)
        group.wait()
        group.fail("planted")
        with pytest.raises(gg.ComputeError, match="planted"):
            first.post()
            first.finish()
        assert group.closed


def test_a_fault_in_turns_is_joined_on_the_card_and_told(group: gg.Group) -> None:
    joined: list[int] = []
    api = ffi.new("pgc_api *")

    def join(side: Any, lane: int, why: Any, size: int) -> bool:
        joined.append(lane)
        return True

    kept = [
        ffi.callback("bool(pgc_side *, char *, size_t)", lambda side, why, size: True),
        ffi.callback("bool(pgc_side *, int, char *, size_t)", lambda side, lane, why, size: True),
        ffi.callback("bool(pgc_side *, int, char *, size_t)", join),
    ]
    api.side_begin, api.side_end, api.side_join = kept
    transport = FakeTransport("fake", outcome=lib.PG_FAULT_TRANSPORT)
    transport.handle.can_capture = True
    transport.join(group, 0)
    first, second = pair(group, states(group, 2), 2)
    for graph in (first, second):
        for part in graph.graphs:
            lib.pg_plan_use(part.check_fresh()._plan, api, False)
    runs = first.beside(second, [ffi.cast("pgc_side *", 1 + rank) for rank in range(2)])
    with group.turn():
        group.post((first, second), runs)
        first.note_in_turns(runs)
    with pytest.raises(gg.ComputeError, match="fake"):
        first.finish()
    assert 0 in joined


@pytest.mark.parametrize("mode", ["tp 2", "turns", "layer split"])
def test_results_of_all_tokens_are_read_at_most_a_micro_batch_at_a_time(
    mode: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    where: dict[str, Any] = {"device": "cpu,cpu", "layer_split" if mode == "layer split" else "tp": 2}
    with opened(monkeypatch, tiny("llama"), takes_turns=mode == "turns", **where) as llm:
        right = llm.score(PROMPT[:200])
        for chunk in (MICRO_BATCH + 1, 2 * MICRO_BATCH, 10 * MICRO_BATCH):
            assert (llm.score(PROMPT[:200], chunk=chunk) == right).all()


def test_graphs_of_another_group_are_refused(group: gg.Group) -> None:
    with gg.Group(["cpu", "cpu"], threads=1) as other, gg.Turns(other) as turns:
        first, second = pair(group, states(group, 1), 1)
        with first, second, pytest.raises(gg.ShapeError, match="belong to one group"):
            turns.post(first, second)


def test_graphs_with_parts_for_other_ranks_are_refused(group: gg.Group) -> None:
    def only_first(g: gg.RankGraph, rank: int) -> None:
        if rank == 0:
            g.output("y", g.input("x", (4,)) * 2.0)

    first, second = pair(group, states(group, 1), 1)
    with first, second, group.compile(only_first) as lone, gg.Turns(group) as turns:
        with pytest.raises(gg.ShapeError, match="parts for the same ranks"):
            turns.post(first, lone)


def test_sums_through_the_host_do_not_travel_by_themselves(group: gg.Group) -> None:
    assert not gg.Turns.are_possible(group)
