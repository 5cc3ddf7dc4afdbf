"""Models over several Vulkan devices, and over Vulkan and other devices together, against one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from equality import EXACT, evaluated

import pyggml as gg
from pyggml.engine import LLM

OTHERS = ["cpu", *(d.name for d in gg.devices() if d.name == "cuda:0")]
PAIRS = [
    "vulkan:0,vulkan:1",
    "vulkan:0,vulkan:0",
    *(pair for other in OTHERS for pair in (f"{other},vulkan:1", f"vulkan:0,{other}")),
]
MODES: list[tuple[str, dict[str, Any]]] = [
    (devices, {mode: 2, "tensor_split": "1,1"}) for devices in PAIRS for mode in ("tp", "layer_split")
]
THREE = ",".join([OTHERS[-1], "vulkan:0", "vulkan:1"])
# family, quant, cache type, options of the model
MODELS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("llama", "F32", "f32", {}),
    ("llama", "Q8_0", "f16", {}),
    ("qwen2", "F32", "f32", {}),
    ("qwen3", "F16", "f16", {}),
    ("qwen3moe", "F32", "f32", {}),
    ("gemma3", "F32", "f16", {"n_layer": 2}),
]


@pytest.mark.parametrize(
    ("arch", "quant", "cache_type", "shape"), MODELS, ids=["-".join(m[:3]) for m in MODELS]
)
def test_every_pair_and_mode_equals_one_rank(
    arch: str, quant: str, cache_type: str, shape: dict[str, Any], tiny: Callable[..., Path]
) -> None:
    """One rank on either of the devices.

    Unlike devices round the activations of quantised types differently. A greedy answer of theirs may part where the
    two best logits are nearer than that.
    """
    path = tiny(arch, quant=quant, **shape)
    one = {d: evaluated(path, d, cache_type=cache_type, max_tokens=8) for d in ("vulkan:0", *OTHERS)}
    for devices, mode in MODES:
        ours = evaluated(path, devices, cache_type=cache_type, max_tokens=8, **mode)
        for right in {devices.split(",")[0], devices.split(",")[1].replace(":1", ":0")}:
            error = ours.nmse(one[right])
            where = f"{devices} {mode} against {right}: NMSE {error:.1e}"
            assert error <= (1e-4 if quant in EXACT else 5e-3), where
            assert ours.gap_at_parting(one[right]) <= 0.3, where
            assert ours.answers == one[right].answers or quant not in EXACT, where
            assert error == 0 or "tp" in mode or devices != "vulkan:0,vulkan:0", where


@pytest.mark.parametrize("split", ["2,1,1", "1,1,2"])
def test_three_unlike_ranks_with_unequal_shares(split: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", n_head=8, n_head_kv=4, n_ff=1024)
    right = evaluated(path, "cpu", cache_type="f16")
    ours = evaluated(path, THREE, cache_type="f16", tp=3, tensor_split=split)
    assert ours.nmse(right) <= 1e-4 and ours.gap_at_parting(right) <= 0.02


def test_micro_batches_in_flight_over_unlike_stages(tiny: Callable[..., Path]) -> None:
    path, ids = tiny("llama"), [(11 * i) % 250 for i in range(150)]
    options: dict[str, Any] = {"ctx": 256, "batch": 16, "threads": 1, "prefix_cache": False}
    answers = []
    for devices in ({"device": "cpu"}, {"device": "vulkan:0,cpu", "layer_split": 2}):
        with LLM(path, **options, **devices) as llm:
            (answer,) = llm.generate([ids], temperature=0, max_tokens=8, ignore_eos=True)
            answers.append(answer.ids)
    assert answers[0] == answers[1]
