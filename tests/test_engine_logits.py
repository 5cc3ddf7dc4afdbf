"""The engine's logits against llama.cpp's stored ones, for tiny models of every family and type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from own_logits import distance, nmse
from stored_logits import PROMPT, StoredCase, stored_cases

from pyggml.engine import LLM

CASES = [case for arch in ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3") for case in stored_cases(arch)]


def opened(tiny: Callable[..., Path], case: StoredCase, **options: object) -> LLM:
    path = tiny(case.arch, quant=case.quant, variant=case.variant, seed=case.seed)
    cache = {"cache_type_k": case.cache_type, "cache_type_v": case.cache_type}
    return LLM(path, device="cpu", threads=2, ctx=256, parallel=1, **cache, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_llama_cpp_all_at_once_and_token_by_token(
    case: StoredCase, tiny: Callable[..., Path]
) -> None:
    assert distance(case, lambda: opened(tiny, case), case.tolerance) <= case.tolerance


@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gemma3"])
@pytest.mark.parametrize("chunk", [5, 8, 23])
def test_chunked_prefill_equals_one_prefill(arch: str, chunk: int, tiny: Callable[..., Path]) -> None:
    with LLM(
        tiny(arch), device="cpu", threads=2, ctx=256, parallel=1, cache_type_k="f32", cache_type_v="f32"
    ) as llm:
        whole = llm.score(PROMPT, logits=True)
        chunked = llm.score(PROMPT, logits=True, chunk=chunk)
    assert nmse(chunked, whole) <= 1e-10


def test_head_falls_back_to_the_embedding_bit_for_bit(tiny: Callable[..., Path]) -> None:
    for quant in ("F16", "Q8_0"):
        logits = []
        for variant in ("tied", "tied_copy"):
            with LLM(
                tiny("llama", quant=quant, variant=variant), device="cpu", threads=2, ctx=256, parallel=1
            ) as llm:
                logits.append(llm.score(PROMPT, logits=True))
        assert np.array_equal(*logits)


def test_sharded_file_equals_the_whole_one(tiny: Callable[..., Path]) -> None:
    logits = []
    for n_shards in (1, 3):
        with LLM(tiny("llama", n_shards=n_shards), device="cpu", threads=2, ctx=256, parallel=1) as llm:
            logits.append(llm.score(PROMPT, logits=True))
    assert np.array_equal(*logits)


def test_scores_are_log_softmax_of_the_logits(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), device="cpu", threads=2, ctx=256, parallel=1) as llm:
        logits = llm.score(PROMPT, logits=True).astype(np.float64)
        scores = llm.score(PROMPT)
    expected = [row[id] - np.log(np.exp(row).sum()) for row, id in zip(logits, PROMPT[1:])]
    assert np.allclose(scores, expected, atol=1e-9)
