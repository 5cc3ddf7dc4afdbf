"""Two cards through Vulkan, and CUDA and Vulkan together: tiny models over both against one.

Needs two Vulkan devices that are cards, the mixed cases also CUDA: `pytest tests/gpu/test_vulkan_cards.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_logits import PROMPT

import pyggml as gg
from pyggml.engine import LLM

NAMES = {d.name for d in gg.devices() if d.kind in ("gpu", "igpu")}
pytestmark = pytest.mark.skipif(
    not {"vulkan:0", "vulkan:1"} <= NAMES, reason="fewer than two cards with Vulkan"
)

PAIRS = ["vulkan:0,vulkan:1", "cuda:0,vulkan:1", "vulkan:0,cuda:1"]
MODELS = [
    ("llama", "F32", "f32"),
    ("llama", "Q8_0", "f16"),
    ("llama", "Q4_K", "q8_0"),
    ("qwen2", "F32", "f16"),
    ("qwen3", "F16", "f16"),
    ("qwen3moe", "F32", "f32"),
    ("gemma3", "F32", "f16"),
]
EXACT = ("F32", "F16", "BF16")
OPEN: dict[str, Any] = {"threads": 2, "ctx": 256, "parallel": 2}


def evaluated(
    path: Path, devices: str, cache: str, **options: Any
) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    with LLM(path, device=devices, cache_type_k=cache, cache_type_v=cache, **OPEN, **options) as llm:
        logits = llm.score(PROMPT, logits=True).astype(np.float64)
        answers = llm.generate(["abc", "hello there, world"], temperature=0, max_tokens=12, ignore_eos=True)
    return logits, [answer.ids for answer in answers]


@pytest.mark.parametrize("devices", PAIRS)
@pytest.mark.parametrize(("arch", "quant", "cache"), MODELS, ids=["-".join(m) for m in MODELS])
def test_modes_on_two_devices_equal_one(
    arch: str, quant: str, cache: str, devices: str, tiny: Callable[..., Path]
) -> None:
    first, second = devices.split(",")
    if not {first, second} <= NAMES:
        pytest.skip(f"no {devices}")
    path = tiny(arch, quant=quant)
    right, answers = evaluated(path, first, cache)
    modes: list[dict[str, Any]] = [{"tp": 2, "tensor_split": "1,1"}, {"layer_split": 2}]
    for mode in modes:
        logits, ids = evaluated(path, devices, cache, **mode)
        error = float(((logits - right) ** 2).sum() / (right**2).sum())
        print(
            f"{arch} {quant} {cache} {devices} {mode}: NMSE {error:.1e}, greedy tokens equal: {ids == answers}"
        )
        assert error <= (1e-4 if quant in EXACT else 5e-3)
        assert ids == answers or quant != "F32"
