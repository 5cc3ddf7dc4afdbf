"""CUDA against the CPU for tiny models of every family and type. Needs a CUDA device: `pytest tests/gpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stored_logits import PROMPT, StoredCase, stored_cases

import pyggml as gg
from pyggml.engine import LLM

pytestmark = pytest.mark.skipif(
    not any(d.module == "cuda" for d in gg.devices()),
    reason="no CUDA device; build with --backends cpu,cuda on a machine that has one",
)

CASES = [case for arch in ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3") for case in stored_cases(arch)]
EXACT = ("F32", "F16", "BF16")


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    return float(((ours - right.astype(np.float64)) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


def logits(path: Path, device: str, cache_type: str, chunk: int | None) -> np.ndarray:
    with LLM(
        path, device=device, ctx=256, parallel=1, threads=4, cache_type_k=cache_type, cache_type_v=cache_type
    ) as llm:
        return llm.score(PROMPT, logits=True, chunk=chunk)


def exact(path: Path, folder: Path) -> np.ndarray:
    """Logits of the same weights in float32 with a float32 cache."""
    copy = folder / "exact.gguf"
    with gg.GGUF(path) as file:
        writer = gg.GGUFWriter(copy, file.metadata, file.metadata.types)
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.numpy(), "f32")
        writer.write()
    return logits(copy, "cpu", "f32", None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cuda_logits_equal_the_cpus(case: StoredCase, tiny: Callable[..., Path], tmp_path: Path) -> None:
    """5e-3 for quantised types, or the CPU's own distance from exact arithmetic where that is more.

    Each rounds activations its own way; in tiny models of very low bits, and where a router or a 4-bit
    cache amplifies it, the CPU alone is farther than 5e-3 / 4 from the exact values.
    """
    path = tiny(case.arch, quant=case.quant, variant=case.variant, seed=case.seed)
    right = logits(path, "cpu", case.cache_type, None)
    is_exact = case.quant in EXACT and case.cache_type in ("f32", "f16", "bf16")
    errors = [nmse(logits(path, "cuda:0", case.cache_type, chunk), right) for chunk in (None, 1)]
    limit = 1e-4 if is_exact else 5e-3
    if max(errors) > limit and not is_exact:
        own = nmse(right, exact(path, tmp_path))
        print(
            f"{case.name}: {max(errors):.1e} on CUDA against the CPU, whose own distance from exact is {own:.1e}"
        )
        limit = 4 * own
    print(f"{case.name}: {errors[0]:.1e} at once, {errors[1]:.1e} step by step")
    assert max(errors) <= limit


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
            answers.append(
                llm.generate(["abc", "hello world", "x"], temperature=0, max_tokens=300, ignore_eos=True)
            )
    same = [sum(a == b for a, b in zip(x.ids, y.ids)) for x, y in zip(*answers)]
    assert all(n >= 4 for n in same), same
