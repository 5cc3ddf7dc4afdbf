"""Tiny models of every family and of many types on one Vulkan device against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equality import EXACT, evaluated
from stored_logits import PROMPT

import pyggml as gg
from pyggml.engine import LLM

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3")
# family, variant, quant, cache type; a float32 cache takes the plain path, others flash attention
CASES = [
    *((arch, "", quant, cache) for arch in FAMILIES for quant, cache in (("F32", "f32"), ("F16", "f16"))),
    ("llama", "", "BF16", "bf16"),
    *(("llama", "", quant, "f16") for quant in ("Q8_0", "Q4_0", "Q4_K", "Q6_K")),
    ("llama", "", "Q8_0", "q8_0"),
    *(("qwen3moe", "", quant, "f16") for quant in ("Q8_0", "Q4_K")),
    ("llama", "bias+tied", "F32", "f16"),
    ("llama", "yarn", "F32", "f32"),
    ("llama", "rope_freqs+wide_head", "F32", "f16"),
    ("llama", "moe", "F32", "f32"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arch", "variant", "quant", "cache_type"), CASES, ids=["-".join(filter(None, case)) for case in CASES]
)
def test_logits_and_greedy_answers_equal_the_cpus(
    arch: str, variant: str, quant: str, cache_type: str, tiny: Callable[..., Path]
) -> None:
    """A greedy answer may part where the two best logits are nearer than the error of either."""
    path = tiny(arch, variant=variant, quant=quant)
    right, ours = (evaluated(path, device, cache_type=cache_type) for device in ("cpu", "vulkan:0"))
    assert ours.nmse(right) <= (1e-4 if quant in EXACT else 5e-3)
    assert ours.gap_at_parting(right) <= (0.02 if quant in EXACT else 0.3)


@pytest.mark.parametrize("cache_type", ["f32", "f16"])
def test_prompt_in_pieces_equals_the_whole(cache_type: str, tiny: Callable[..., Path]) -> None:
    options: dict[str, Any] = {
        "ctx": 256,
        "parallel": 1,
        "cache_type_k": cache_type,
        "cache_type_v": cache_type,
    }
    with LLM(tiny("llama"), device="vulkan:0", **options) as llm:
        whole = llm.score(PROMPT, logits=True).astype(np.float64)
        for chunk in (1, 7):
            pieces = llm.score(PROMPT, logits=True, chunk=chunk)
            assert ((pieces - whole) ** 2).sum() <= 1e-4 * (whole**2).sum(), f"pieces of {chunk}"


def test_devices_are_numbered_and_a_software_renderer_is_never_the_default() -> None:
    found = [d for d in gg.devices() if d.module == "vulkan"]
    assert [d.name for d in found] == [f"vulkan:{i}" for i in range(len(found))]
    assert all(d.kind == "software" for d in found if "llvmpipe" in d.description)
    assert gg.default_device().kind != "software"
    assert not any(d.kind == "software" for d in gg.discrete_gpus())
