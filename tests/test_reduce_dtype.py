"""Sums that travel as 16 bits: how they round, from which size on, alike on all ranks, and what refuses them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_models import CACHE, facts, gpus, llama_8b

import pyggml as gg
from pyggml import reduce_type
from pyggml.engine import LLM, ConfigError
from pyggml.engine.cli import bench_modes
from pyggml.engine.cli.loading import placing
from pyggml.engine.cli.options import OPTIONS, options_of
from pyggml.engine.cli.settings import settle
from pyggml.engine.load_options import REDUCE_DTYPES as OFFERED
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.prediction import LinkTimes, Mode, Work, predict
from pyggml.engine.remedies import cut_demands
from pyggml.reduce_type import MIN_NARROW_ELEMENTS, REDUCE_DTYPES

RNG = np.random.default_rng(11)
NARROW = ("bf16", "f16")


def rounded(x: np.ndarray, kind: str) -> np.ndarray:
    return gg.dequantize(gg.quantize(x, kind), kind, x.shape)


def sums(parts: list[np.ndarray], kind: str) -> list[np.ndarray]:
    """The sum on each rank."""

    def build(g: gg.RankGraph, rank: int) -> gg.Tensor:
        return g.output("y", g.all_reduce(g.input("x", parts[0].shape) * 1.0))

    with gg.Group(["cpu"] * len(parts), threads=1, reduce_dtype=kind) as group, group.compile(build) as graph:
        graph.run(x=parts)
        return [graph.outputs(rank)["y"] for rank in range(len(parts))]


def parts_of(n_ranks: int, n: int) -> list[np.ndarray]:
    return [(RNG.standard_normal((1, n)) * 3).astype("f4") for _ in range(n_ranks)]


def in_rank_order(parts: list[np.ndarray]) -> np.ndarray:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", NARROW)
def test_parts_and_sum_are_rounded_once_and_added_in_float32_in_rank_order(kind: str, n_ranks: int) -> None:
    parts = parts_of(n_ranks, MIN_NARROW_ELEMENTS + 12345)
    right = rounded(in_rank_order([rounded(part, kind) for part in parts]), kind)
    assert not np.array_equal(right, in_rank_order(parts))
    for y in sums(parts, kind):
        assert np.array_equal(y, right)


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize(("more", "is_exact"), [(-1, True), (0, False), (1, False)])
def test_smaller_sums_stay_float32(kind: str, more: int, is_exact: bool) -> None:
    parts = parts_of(2, MIN_NARROW_ELEMENTS + more)
    right = in_rank_order(parts)
    for y in sums(parts, kind):
        assert np.array_equal(y, right) == is_exact
        assert np.abs(y - right).max() < 0.1


def test_float32_is_the_default_and_exact_at_any_size() -> None:
    parts = parts_of(3, MIN_NARROW_ELEMENTS + 7)
    assert all(np.array_equal(y, in_rank_order(parts)) for y in sums(parts, "f32"))


def test_bf16_carries_what_f16_cannot() -> None:
    parts = [np.full((1, MIN_NARROW_ELEMENTS), 40000, "f4")] * 2
    assert np.isinf(sums(parts, "f16")[0]).all()
    assert np.array_equal(sums(parts, "bf16")[0], np.full((1, MIN_NARROW_ELEMENTS), 79872, "f4"))


def test_several_sums_in_a_row_of_both_kinds_are_each_used_once() -> None:
    n = MIN_NARROW_ELEMENTS

    def build(g: gg.RankGraph, rank: int) -> None:
        large = g.all_reduce(g.input("x", (2, n)) * 1.0)
        small = g.all_reduce(g.input("z", (1, 8)) * 1.0)
        again = g.all_reduce(large * 0.5)
        g.output("y", again)
        g.output("s", small)

    x, z = np.tile(np.arange(1, 9, dtype="f4"), (2, n // 8)), np.ones((1, 8), "f4")
    with gg.Group(["cpu"] * 2, threads=1, reduce_dtype="bf16") as group, group.compile(build) as graph:
        for _ in range(3):
            results = graph.run(x=x, z=z)
            assert np.array_equal(results["y"], 2 * x) and np.array_equal(results["s"], 2 * z)
        assert group.n_reduces() == 9


def test_a_group_of_one_rounds_nothing() -> None:
    (x,) = parts_of(1, MIN_NARROW_ELEMENTS)
    assert np.array_equal(sums([x], "bf16")[0], x)


def test_ranks_that_disagree_on_the_type_are_refused_before_they_meet() -> None:
    def build(g: gg.RankGraph, rank: int) -> None:
        g.reduce_dtype = "bf16" if rank else "f32"
        g.output("y", g.all_reduce(g.input("x", (1, MIN_NARROW_ELEMENTS)) * 1.0))

    with gg.Group(["cpu"] * 2, threads=1) as group, pytest.raises(gg.ShapeError, match="all ranks need the same"):
        group.compile(build)


def test_types_that_do_not_exist_or_that_a_device_lacks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(gg.DeviceError, match="reduce dtype 'q8_0'; f32, bf16, f16 are supported"):
        gg.Group(["cpu"] * 2, threads=1, reduce_dtype="q8_0")
    supports = gg.Backend.supports
    monkeypatch.setattr(
        gg.Backend, "supports", lambda backend, node: node.dtype.name != "bf16" and supports(backend, node)
    )
    with pytest.raises(gg.DeviceError, match="reduce dtype bf16: cpu cannot cast .*; would work: f32, f16"):
        gg.Group(["cpu"] * 2, threads=1, reduce_dtype="bf16")


# Models

OPEN: dict[str, Any] = {
    "device": "cpu,cpu", "tp": 2, "threads": 1, "ctx": 1280, "parallel": 1, "batch": 1024, "cache_type_k": "f32",
    "cache_type_v": "f32",
}  # fmt: skip
N_EMBD = 256  # of a tiny model: a chunk of 1024 tokens is a sum of MIN_NARROW_ELEMENTS


def logits(path: Path, n_tokens: int, kind: str) -> np.ndarray:
    ids = [(7 * i) % 250 for i in range(n_tokens)]
    with LLM(path, **OPEN, reduce_dtype=kind) as llm:
        return llm.score(ids, logits=True)


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    return float(((ours - right.astype(np.float64)) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


@pytest.mark.parametrize("kind", NARROW)
def test_only_chunks_of_many_tokens_are_touched_and_little(kind: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama")
    n_long = MIN_NARROW_ELEMENTS // N_EMBD
    assert np.array_equal(logits(path, n_long - 200, kind), logits(path, n_long - 200, "f32"))
    long, right = logits(path, n_long, kind), logits(path, n_long, "f32")
    assert 0 < nmse(long, right) < (1e-3 if kind == "bf16" else 1e-5)


def test_decode_keeps_its_bits_however_many_slots_there_are(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reduce_type, "MIN_NARROW_ELEMENTS", 4 * N_EMBD)  # what four slots make in a decode step

    def found(kind: str, n_tokens: int) -> list[Any]:
        prompts = [[3 + slot + 5 * i for i in range(n_tokens)] for slot in range(8)]
        with LLM(tiny("llama"), **OPEN | {"ctx": 256, "parallel": 8}, reduce_dtype=kind) as llm:
            answers = llm.generate(prompts, temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
        return [(answer.ids, answer.logprobs) for answer in answers]

    assert found("bf16", 1) == found("f32", 1)
    assert found("bf16", 8) != found("f32", 8), "prompts of several tokens travel narrow"


def test_what_travels_is_told(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), **OPEN, reduce_dtype="bf16") as llm:
        assert "prompts' sums of 262144 numbers and more travel as bf16" in llm.notes


def test_the_option_is_there_in_every_door_and_names_the_types_that_there_are() -> None:
    (option,) = (o for o in OPTIONS if o.name == "reduce-dtype")
    assert OFFERED == REDUCE_DTYPES and [option.kind.read(name) for name in OFFERED] == list(OFFERED)
    assert str(MIN_NARROW_ELEMENTS) in option.help
    with pytest.raises(ConfigError, match="reduce-dtype = 'fp8'; f32, bf16, f16 are supported"):
        LoadOptions(tp=2, reduce_dtype="fp8")


def test_other_places_keep_it_only_where_ranks_sum() -> None:
    options = LoadOptions(tp=2, reduce_dtype="bf16")
    assert options.changed({"tp": 4}).reduce_dtype == "bf16"
    assert options.changed({"device": "cpu"}).reduce_dtype == options.changed({"layer-split": 2}).reduce_dtype == "f32"


def test_modes_that_are_compared_keep_it_only_where_ranks_sum() -> None:
    words = {"device": "cpu,cpu", "reduce-dtype": "f16", "transport": "nccl", "modes": "all"}
    given = {name: [(text, f"--{name}")] for name, text in words.items()}
    settings = settle("bench", options_of("bench"), given, {})
    one, tensor, split = (placing(settings) | where for where in bench_modes.modes(settings))
    assert [where["reduce_dtype"] for where in (one, tensor, split)] == ["f32", "f16", "f32"]
    assert [where.get("transport") for where in (one, tensor, split)] == ["auto", None, "auto"]


def test_a_prompt_is_predicted_with_the_bytes_that_travel() -> None:
    hp, links = llama_8b(), LinkTimes(reduce=((4, 1e-6), (2**24, 1e-3)))
    demands = cut_demands(facts(hp), [replace(d, bandwidth=1e12, flops=1e14) for d in gpus(2)])
    work = [Work(512, 512, 512, kind) for kind in ("f32", "bf16")]
    wide, narrow = (predict(hp, Mode.TENSOR, demands, CACHE, w, links) for w in work)
    assert wide.token_s == narrow.token_s
    assert wide.first_token_s and narrow.first_token_s
    saved = 2 * hp.n_layer * 512 * hp.n_embd * 2 / 2**24 * 1e-3
    assert wide.first_token_s - narrow.first_token_s == pytest.approx(saved, rel=0.01)
