"""CUDA against the CPU for tiny models of every family and type. Needs a CUDA device: `pytest tests/gpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyggml as gg
import pytest
from pyggml.engine import LLM
from stored_logits import PROMPT, StoredCase, stored_cases

pytestmark = pytest.mark.skipif(
    not any(d.module == "cuda" for d in gg.devices()), reason="no CUDA device; build with --backends cpu,cuda on a machine that has one"
)

CASES = [case for arch in ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3") for case in stored_cases(arch)]
EXACT = ("F32", "F16", "BF16")


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    return float(((ours - right.astype(np.float64)) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


def logits(path: Path, device: str, cache_type: str, chunk: int | None) -> np.ndarray:
    with LLM(path, device=device, ctx=256, parallel=1, threads=4, cache_type_k=cache_type, cache_type_v=cache_type) as llm:
        return llm.score(PROMPT, logits=True, chunk=chunk)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cuda_logits_equal_the_cpus(case: StoredCase, tiny: Callable[..., Path], record_property: Callable[..., None]) -> None:
    path = tiny(case.arch, quant=case.quant, variant=case.variant, seed=case.seed)
    right = logits(path, "cpu", case.cache_type, None)
    limit = 1e-4 if case.quant in EXACT and case.cache_type in ("f32", "f16", "bf16") else 5e-3
    for chunk in (None, 1):
        error = nmse(logits(path, "cuda:0", case.cache_type, chunk), right)
        print(f"{case.name} chunk {chunk}: {error:.1e}")
        assert error <= limit


@pytest.mark.parametrize("head_dim", [16, 32, 48, 64, 80, 96, 128, 160, 256])
@pytest.mark.parametrize("cache_type", ["f16", "bf16", "q8_0", "q4_0"])
def test_every_head_size_runs(head_dim: int, cache_type: str, tiny: Callable[..., Path]) -> None:
    if head_dim % gg.dtype(cache_type).block_size:
        pytest.skip("the cache's blocks do not divide the heads")
    path = tiny("llama", head_dim=head_dim)
    right, ours = (logits(path, device, cache_type, None) for device in ("cpu", "cuda:0"))
    assert nmse(ours, right) <= 5e-3


def test_generation_on_cuda_equals_the_cpus_greedy_answer(tiny: Callable[..., Path]) -> None:
    answers = []
    for device in ("cpu", "cuda:0"):
        with LLM(tiny("llama"), device=device, ctx=1024, threads=4) as llm:
            answers.append(llm.generate(["abc", "hello world", "x"], temperature=0, max_tokens=300, ignore_eos=True))
    same = [sum(a == b for a, b in zip(x.ids, y.ids)) for x, y in zip(*answers)]
    assert all(n >= 4 for n in same), same
