"""Models over several CPU ranks against one rank: every family, tensor parallel and layer split."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_logits import PROMPT

import pyggml as gg
from pyggml._ffi import lib
from pyggml.engine import LLM, ConfigError, DeviceLost, GenerationError, weights
from pyggml.engine.engine import MAX_REBUILDS
from pyggml.engine.forward import Forward
from pyggml.engine.pace import Pace
from pyggml.engine.plan import Place
from pyggml.engine.rank import Rank
from pyggml.engine.runner import Runner

F32: dict[str, Any] = {"threads": 1, "ctx": 256, "parallel": 2, "cache_type_k": "f32", "cache_type_v": "f32"}
UNEVEN = {"n_head": 6, "n_head_kv": 3, "n_ff": 768, "n_vocab": 323}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", UNEVEN | {"n_layer": 3}),
    ("llama", {"variant": "bias+tied"}),
    ("llama", {"variant": "moe"}),
    ("llama", {"n_head": 8, "n_head_kv": 1}),
    ("qwen2", {"n_layer": 3}),
    ("qwen3", UNEVEN),
    ("qwen3moe", {"n_layer": 3}),
    ("gemma3", {}),
    ("gemma3", UNEVEN),
]
IDS = ["-".join([arch, *(f"{k}={v}" for k, v in options.items())]) for arch, options in MODELS]
ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
PROMPTS = ["abc", "hello there, world"]


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    return float(((ours - right.astype(np.float64)) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


def evaluated(path: Path, n_ranks: int = 1, **options: Any) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """All logits of the prompt, and two greedy answers made as one batch."""
    with LLM(path, device=",".join(["cpu"] * n_ranks), **F32, **options) as llm:
        logits = llm.score(PROMPT, logits=True)
        return logits, [answer.ids for answer in llm.generate(PROMPTS, **ASKED)]


@pytest.mark.parametrize(("arch", "options"), MODELS, ids=IDS)
def test_every_mode_equals_one_rank(arch: str, options: dict[str, Any], tiny: Callable[..., Path]) -> None:
    path = tiny(arch, **options)
    right, answers = evaluated(path)
    limit = 1e-6 if arch == "gemma3" else 1e-10
    for n in (2, 3, 4, 5, 8):
        logits, ids = evaluated(path, n, tp=n)
        assert logits.shape == right.shape
        assert nmse(logits, right) <= limit, f"tp {n}"
        assert ids == answers, f"tp {n}"
    n_layer = 7 if arch == "gemma3" else options.get("n_layer", 2)
    for n in (2, 3):
        if n <= n_layer:
            logits, ids = evaluated(path, n, layer_split=n)
            assert np.array_equal(logits, right), f"layer split {n}"
            assert ids == answers, f"layer split {n}"


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_0", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4", "mixed"])
def test_quantised_weights_are_cut_on_blocks(quant: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", quant=quant, n_ff=768)
    right, _ = evaluated(path)
    for n in (2, 3):
        logits, _ = evaluated(path, n, tp=n)
        assert nmse(logits, right) <= 2e-3, f"tp {n}"
    logits, _ = evaluated(path, 2, layer_split=2)
    assert np.array_equal(logits, right)


@pytest.mark.parametrize("mode", [{}, {"tp": 2}, {"layer_split": 2}], ids=str)
def test_prompts_like_earlier_ones_build_no_plan(mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    devices = ",".join(["cpu"] * max(mode.values(), default=1))
    with LLM(tiny("llama"), device=devices, threads=1, ctx=512, parallel=4, **mode) as llm:
        for first, n in ((3, 300), (4, 300), (5, 290)):
            n_before = llm.stats.n_plans_built
            prompts = [[first + i * step % 250 for i in range(n)] for step in (1, 3, 7, 11)]
            llm.generate(prompts, temperature=0, max_tokens=10, ignore_eos=True)
            assert (llm.stats.n_plans_built > n_before) is (first == 3)


@pytest.mark.parametrize("expert_split", ["inside", "experts"])
def test_experts_cut_inside_or_dealt_whole(expert_split: str, tiny: Callable[..., Path]) -> None:
    path = tiny("qwen3moe")
    right, answers = evaluated(path)
    logits, ids = evaluated(path, 3, tp=3, expert_split=expert_split)
    assert nmse(logits, right) <= 1e-10 and ids == answers


@pytest.mark.parametrize("split", ["3,1", "1,3", "1,0", "0,1", "1/2"])
def test_shares_by_hand(split: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", n_head=8, n_head_kv=4)
    right, answers = evaluated(path)
    logits, ids = evaluated(path, 2, tp=2, tensor_split=split)
    assert nmse(logits, right) <= 1e-10 and ids == answers


@pytest.mark.parametrize("split", ["1,2", "3,0", "0,3"])
def test_layer_counts_by_hand(split: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", n_layer=3)
    right, answers = evaluated(path)
    logits, ids = evaluated(path, 2, layer_split=2, tensor_split=split)
    assert np.array_equal(logits, right) and ids == answers


def test_long_answers_stay_equal_across_windows(tiny: Callable[..., Path]) -> None:
    options: dict[str, Any] = {
        "threads": 1,
        "ctx": 1024,
        "parallel": 1,
        "cache_type_k": "f32",
        "cache_type_v": "f32",
    }
    answers = []
    for extra in ({"device": "cpu"}, {"device": "cpu,cpu", "tp": 2}, {"device": "cpu,cpu", "layer_split": 2}):
        with LLM(tiny("llama"), **options, **extra) as llm:
            answers.append(llm.generate("abc", temperature=0, max_tokens=600, ignore_eos=True).ids)
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 600


def test_two_sums_a_layer_and_the_residual_is_bitwise_equal(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce = Forward.reduce

    def watched(self: Forward, x: gg.Tensor) -> gg.Tensor:
        summed = reduce(self, x)
        self.graph.output(f"sum.{len(self.graph.collectives)}", summed * 1.0)
        return summed

    with LLM(tiny("llama", n_layer=3), device="cpu,cpu,cpu", tp=3, **F32) as llm:
        group = llm._loaded.ranks.group
        assert group is not None
        before = group.n_reduces()
        llm.score(PROMPT, logits=True)
        assert group.n_reduces() - before == 2 * 3
        monkeypatch.setattr(Forward, "reduce", watched)
        llm.score(PROMPT[:7], logits=True)
        *_, (_, plan) = llm._runner._plans.items()
        results = [graph.copy_results() for graph in plan.graphs]
        names = [name for name in results[0] if name.startswith("sum.")]
        assert len(names) == 6
        for name in names:
            assert np.array_equal(results[0][name], results[1][name])
            assert np.array_equal(results[0][name], results[2][name])


def test_ranks_hold_about_their_share_of_the_bytes(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama", n_head=8, n_head_kv=4), device="cpu,cpu", tp=2, **F32) as llm:
        sizes = [p.weights_bytes + p.mapped_bytes for p in llm.plan]
        cut = sum(f.tensor.n_bytes for f in llm.model.weights if f.row.cut.value != "replicated")
        whole = sum(f.tensor.n_bytes for f in llm.model.weights if f.row.cut.value == "replicated")
        assert abs(sizes[0] - sizes[1]) <= 0.02 * sizes[0]
        assert abs(sum(sizes) - (cut + 2 * whole)) <= 0.02 * sum(sizes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tp": 2, "layer_split": 2}, "--tp 2 and --layer-split 2 exclude each other"),
        ({"tp": 0}, "tp = 0"),
        ({"layer_split": -1}, "layer-split = -1"),
        ({"tp": 17, "device": ",".join(["cpu"] * 17)}, "tp = 17; 1 to 16"),
        ({"tp": 2}, "--device cpu,cpu"),
        ({"tp": 3, "device": "cpu,cpu"}, "lists 2 devices for 3 ranks"),
        ({"device": "cpu,cpu"}, "--tp 2 or --layer-split 2"),
        ({"tp": 2, "device": "cpu,cpu", "tensor_split": "0,0"}, "one share must be above 0"),
        ({"tp": 2, "device": "cpu,cpu", "tensor_split": "1,-1"}, "0 or more"),
        ({"tp": 2, "device": "cpu,cpu", "tensor_split": "a"}, "numbers, as in 3,1"),
        ({"tp": 2, "device": "cpu,cpu", "tensor_split": "1,1,1"}, "3 shares"),
        ({"layer_split": 3, "device": "cpu,cpu,cpu"}, "the model has 2 layers"),
        ({"layer_split": 2, "device": "cpu,cpu", "tensor_split": "1,2"}, "sum to 2"),
        ({"tensor_split": "1,1"}, "needs --tp or --layer-split"),
        ({"tp": 2, "device": "cpu,cpu", "expert_split": "some"}, "expert-split = 'some'"),
    ],
)
def test_refusals_come_before_a_weight_is_read(
    options: dict[str, Any], words: str, tiny: Callable[..., Path]
) -> None:
    def unwanted(done: int, total: int) -> None:
        pytest.fail("a weight was read")

    with pytest.raises(ConfigError, match=words):
        LLM(tiny("llama"), progress=unwanted, ctx=256, **options)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_a_layer_split_hands_over_once_between_each_two_and_sums_nothing(
    n_ranks: int, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[list[tuple[int, ...]]] = []
    original = gg.GroupGraph.__init__

    def noted(self: gg.GroupGraph, group: gg.Group, graphs: Any) -> None:
        made.append([(c.op, c.peer) for graph in graphs for c in graph.collectives])
        original(self, group, graphs)

    monkeypatch.setattr(gg.GroupGraph, "__init__", noted)
    with LLM(tiny("llama", n_layer=3), device=",".join(["cpu"] * n_ranks), layer_split=n_ranks, **F32) as llm:
        llm.generate("abc", max_tokens=4, ignore_eos=True)
    stages = range(n_ranks)
    right = sorted([*((lib.PG_SEND, r + 1) for r in stages[:-1]), *((lib.PG_RECV, r) for r in stages[:-1])])
    assert made and all(sorted(collectives) == right for collectives in made)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_micro_batches_in_flight_give_the_sequential_answer(n_ranks: int, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", n_layer=3)
    ids = [(11 * i) % 250 for i in range(203)]
    options = F32 | {"batch": 16, "prefix_cache": False}
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True, "logprobs": 3}
    with LLM(path, device="cpu", **options) as llm:
        right = [llm.generate([ids[:n]], **asked)[0] for n in (203, 128, 129, 17)]
    with LLM(path, device=",".join(["cpu"] * n_ranks), layer_split=n_ranks, **options) as llm:
        answers = [llm.generate([ids[:n]], **asked)[0] for n in (203, 128, 129, 17)]
        assert llm.stats.n_steps > 0
    assert [a.ids for a in answers] == [a.ids for a in right]
    assert [a.logprobs for a in answers] == [a.logprobs for a in right]


def test_stages_take_a_long_prompt_without_running_empty(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    original = Runner._several_of_one

    def noted(self: Runner, place: Place, out_rows: Sequence[int]) -> Any:
        taken.append(len(place.ids))
        return original(self, place, out_rows)

    monkeypatch.setattr(Runner, "_several_of_one", noted)
    options: dict[str, Any] = {"threads": 1, "ctx": 256, "batch": 8, "prefix_cache": False}
    with LLM(tiny("llama", n_layer=3), device="cpu,cpu", layer_split=2, **options) as llm:
        assert llm._runner._rounding.can_move  # else each place in the cache is a plan, and fewer may be in flight
        before = llm.stats.n_steps
        for start in (0, 3):
            llm._scheduler.pace = Pace(llm._runner.limits.max_chunk, 1e6, llm._runner.limits.max_first)
            if start:
                llm._scheduler.pace.note_prefill(64, 64.0)  # one a second, of which 1e7 s are granted
            llm.generate([[(7 * i + start) % 250 for i in range(200)]], max_tokens=1)
        n_steps = llm.stats.n_steps - before
    assert taken[:1] + taken[-1:] == [64, 200]  # of unknown speed eight chunks at a time, then all that time allows
    assert n_steps == 2 * 25


@pytest.mark.parametrize("mode", [{"tp": 2}, {"layer_split": 2}])
def test_a_fault_of_a_rank_ends_its_requests_and_the_next_run_on_ranks_built_anew(
    mode: dict[str, int], tiny: Callable[..., Path]
) -> None:
    asked: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
    with LLM(tiny("llama"), device="cpu,cpu", **(F32 | mode | {"parallel": 1})) as llm:
        before = llm.generate("abc", max_tokens=9, **asked).ids
        stream = llm.generate(["abc"], max_tokens=200, stream=True, **asked)
        waiting = llm.generate(["abc"], max_tokens=9, stream=True, **asked)
        next(stream)
        group = llm._loaded.ranks.group
        assert group is not None
        group.fail("planted", rank=1)
        with pytest.raises(GenerationError, match="planted"):
            for _ in stream:
                pass
        assert tuple(id for delta in waiting for id in delta.ids) == before
        assert llm.generate("abc", max_tokens=9, **asked).ids == before
        status = llm.status()
        assert (status.state, status.n_rebuilds, status.n_open) == ("ready", 1, 0)
        assert status.fault is not None and "planted" in status.fault
    assert not [t for t in threading.enumerate() if t.name.startswith("pyggml-rank")]


def plant_a_fault(llm: LLM) -> None:
    group = llm._loaded.ranks.group
    assert group is not None
    group.fail("planted", rank=1)
    with pytest.raises(GenerationError, match="planted"):
        llm.generate("abc", max_tokens=4)


@pytest.mark.parametrize("can_rebuild", [False, True])
def test_ranks_that_cannot_be_built_again_or_fail_again_and_again_are_lost(
    can_rebuild: bool, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(tiny("llama"), device="cpu,cpu", **F32, tp=2) as llm:
        if can_rebuild:
            for _ in range(MAX_REBUILDS):
                plant_a_fault(llm)
                llm._engine.call(lambda: None)
        else:
            monkeypatch.setattr(llm._loaded, "_open", lambda devices: 1 / 0)
        plant_a_fault(llm)
        for _ in range(600):
            if llm.status().state == "failed":
                break
            time.sleep(0.05)
        assert llm.status().is_device_lost
        with pytest.raises(DeviceLost, match="planted"):
            llm.generate("abc", max_tokens=4)
    assert not [t for t in threading.enumerate() if t.name.startswith("pyggml-rank")]


@pytest.mark.parametrize("mode", [{"tp": 3}, {"tp": 2, "expert_split": "experts"}, {"layer_split": 2}])
def test_experts_chosen_by_rank_0_give_the_same(
    mode: dict[str, Any], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("qwen3moe")
    right, answers = evaluated(path)
    kinds = iter(range(100))
    monkeypatch.setattr(Rank, "kernels", property(lambda self: ("cpu", str(next(kinds)))))
    n = mode.get("tp") or mode["layer_split"]
    logits, ids = evaluated(path, n, **mode)
    assert nmse(logits, right) <= 1e-10 and ids == answers


@pytest.mark.parametrize("lacking", [{0}, {1}, {0, 1}])
def test_ranks_whose_device_cannot_look_rows_up(
    lacking: set[int], tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama")
    right, answers = evaluated(path)
    asked = iter(range(100))
    monkeypatch.setattr(weights, "_can_look_up", lambda backend, tensor: next(asked) not in lacking)
    logits, ids = evaluated(path, 2, tp=2)
    assert nmse(logits, right) <= 1e-10 and ids == answers


def test_a_rank_without_experts_takes_part_in_the_choice(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("qwen3moe", n_expert=2, n_expert_used=1)
    right, answers = evaluated(path)
    kinds = iter(range(100))
    monkeypatch.setattr(Rank, "kernels", property(lambda self: ("cpu", str(next(kinds)))))
    logits, ids = evaluated(path, 3, tp=3, expert_split="experts")
    assert nmse(logits, right) <= 1e-10 and ids == answers


def test_long_prompts_after_the_memory_moved(tiny: Callable[..., Path]) -> None:
    options = F32 | {"batch": 32, "ctx": 1024, "prefix_cache": True}
    ids = [(11 * i) % 250 for i in range(400)]
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
    with LLM(tiny("llama", n_vocab=16384), device="cpu,cpu", layer_split=2, **options) as llm:
        answers = [llm.generate([ids[:n]], **asked)[0].ids for n in (201, 300)]
        llm.score(ids[:100])
        assert llm.generate([ids[:300]], **asked)[0].ids == answers[1]
        assert len(llm.generate([ids], **asked)[0].ids) == 4
