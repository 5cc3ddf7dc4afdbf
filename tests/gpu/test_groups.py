"""Groups of CUDA devices: tiny models over two and more cards against one. Emulated cards (GGML_CUDA_DEVICES) count.

Needs two or more CUDA devices: `pytest tests/gpu/test_groups.py`.
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

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(len(CARDS) < 2, reason="fewer than two CUDA devices")

OPEN: dict[str, Any] = {"threads": 4, "ctx": 1024, "parallel": 2}
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"variant": "moe"}),
    ("llama", {"n_head": 6, "n_head_kv": 3, "n_ff": 768, "n_vocab": 323, "n_layer": 3}),
    ("llama", {"head_dim": 64, "n_head": 8, "n_head_kv": 2}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("qwen3moe", {}),
    ("gemma3", {}),
]
IDS = ["-".join([arch, *(f"{k}={v}" for k, v in options.items())]) for arch, options in MODELS]
ASKED: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    return float(((ours - right.astype(np.float64)) ** 2).sum() / (right.astype(np.float64) ** 2).sum())


def evaluated(path: Path, devices: list[str], cache: str, **options: Any) -> tuple[np.ndarray, Any]:
    names = ",".join(devices)
    with LLM(path, device=names, cache_type_k=cache, cache_type_v=cache, **OPEN, **options) as llm:
        logits = llm.score(PROMPT, logits=True)
        return logits, [a.ids for a in llm.generate(["abc", "hello there, world"], **ASKED)]


def n_equal(a: Any, b: Any) -> list[int]:
    """How many tokens of each answer are equal from its beginning."""
    return [next((i for i, (x, y) in enumerate(zip(p, q)) if x != y), len(p)) for p, q in zip(a, b)]


@pytest.mark.parametrize("cache", ["f32", "f16"])
@pytest.mark.parametrize(("arch", "options"), MODELS, ids=IDS)
def test_modes_on_two_cards_equal_one(
    arch: str, options: dict[str, Any], cache: str, tiny: Callable[..., Path]
) -> None:
    path = tiny(arch, **options)
    right, answers = evaluated(path, CARDS[:1], cache)
    for mode in ({"tp": 2}, {"layer_split": 2}):
        logits, ids = evaluated(path, CARDS[:2], cache, **mode)
        print(f"{arch} {options} {cache} {mode}: NMSE {nmse(logits, right):.1e}, equal tokens {n_equal(ids, answers)}")
        assert nmse(logits, right) <= 1e-4
        if "layer_split" in mode:
            assert np.array_equal(logits, right) and ids == answers


@pytest.mark.parametrize("quant", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "mixed"])
def test_quantised_models_on_two_cards(quant: str, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", quant=quant, n_ff=768)
    right, _ = evaluated(path, CARDS[:1], "f16")
    logits, _ = evaluated(path, CARDS[:2], "f16", tp=2)
    print(f"{quant}: NMSE {nmse(logits, right):.1e}")
    assert nmse(logits, right) <= (1e-4 if quant in ("F16", "BF16") else 5e-3)


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_more_ranks_than_cards_share_them(n: int, tiny: Callable[..., Path]) -> None:
    devices = (CARDS * 16)[:n]
    path = tiny("llama", n_head=8, n_head_kv=2)
    right, _ = evaluated(path, CARDS[:1], "f32")
    logits, _ = evaluated(path, devices, "f32", tp=n)
    assert nmse(logits, right) <= 1e-4


def test_a_card_and_the_cpu_together(tiny: Callable[..., Path]) -> None:
    path = tiny("llama")
    right, _ = evaluated(path, CARDS[:1], "f32")
    for mode in ({"tp": 2}, {"layer_split": 2}):
        logits, _ = evaluated(path, [CARDS[0], "cpu"], "f32", **mode)
        assert nmse(logits, right) <= 1e-4


@pytest.mark.parametrize("transport", ["push", "push-shm", "nccl"])
def test_every_transport_gives_the_same_greedy_tokens(
    transport: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama", n_layer=4)
    monkeypatch.setenv("PYGGML_TRANSPORT", "host")
    _, right = evaluated(path, CARDS[:2], "f16", tp=2)
    monkeypatch.setenv("PYGGML_TRANSPORT", transport)
    try:
        _, ids = evaluated(path, CARDS[:2], "f16", tp=2)
    except gg.DeviceError as error:
        pytest.skip(str(error))
    assert ids == right
