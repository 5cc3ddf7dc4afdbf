"""Many requests at once on CUDA cards: answers as alone, rows copied between slots, beginnings kept in files.

Needs a CUDA device; the modes of several need two: `pytest tests/gpu/test_serving_cards.py`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sent import Sent

import pyggml as gg
from pyggml.engine import LLM

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")

MODES: dict[str, dict[str, Any]] = {
    "one card": {"device": "cuda:0"},
    "tensor parallel": {"tp": 2},
    "layer split": {"layer_split": 2},
}
ASKED: dict[str, Any] = {"max_tokens": 10, "ignore_eos": True}


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param != "one card" and len(CARDS) < 2:
        pytest.skip("fewer than two CUDA devices")
    options: dict[str, Any] = MODES[request.param]
    return options


def is_near_tie(llm: LLM, prompt: list[int], a: list[int], b: list[int]) -> bool:
    """Whether the first tokens that differ are about as likely as one another."""
    at = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    row = llm.score([*prompt, *a[:at]], logits=True)[-1]
    return bool(abs(row[a[at]] - row[b[at]]) <= 1e-2 * np.abs(row).max())


def test_answers_of_a_crowd_are_those_of_each_alone(mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    """Cards have other kernels for other numbers of columns, so that near-ties may end differently."""
    rng = random.Random(3)
    shared = [rng.randrange(3, 300) for _ in range(150)]
    prompts = [
        shared[: rng.choice((0, 70, 150))] + [rng.randrange(3, 300) for _ in range(rng.choice((1, 9, 130)))]
        for _ in range(12)
    ]
    path, cache = tiny("llama", quant="F32"), {"cache_type_k": "f32", "cache_type_v": "f32"}
    with LLM(path, **mode, **cache, ctx=512, parallel=1, prefix_cache=False) as llm:
        alone = [Sent(llm, ids, **ASKED).wait().ids() for ids in prompts]
    with LLM(path, **mode, **cache, ctx=512, parallel=4, batch=64) as llm:
        sent = [Sent(llm, ids, **ASKED) for ids in prompts * 2]
        together = [s.wait().ids() for s in sent]
        assert llm.status().prefix.n_copies > 0
    different = [i for i, (a, b) in enumerate(zip(alone * 2, together)) if a != b]
    assert len(different) <= len(together) // 3
    with LLM(path, **mode, **cache, ctx=512, parallel=1, prefix_cache=False) as llm:
        for i in different:
            assert is_near_tie(llm, prompts[i % len(prompts)], alone[i % len(prompts)], together[i])


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_after_a_restart_the_beginning_is_not_evaluated_again(
    cache_type: str, mode: dict[str, Any], tiny: Callable[..., Path], tmp_path: Path
) -> None:
    system = [5 + i % 250 for i in range(300)]
    options = {**mode, "cache_type_k": cache_type, "cache_type_v": cache_type, "ctx": 512, "parallel": 2}
    with LLM(tiny("llama"), **options, prefix_cache_dir=tmp_path) as llm:
        for i in range(3):
            Sent(llm, [*system, 20 + i, 21], **ASKED).wait()
        right = Sent(llm, [*system, 30, 31], **ASKED).wait().ids()
        for _ in range(200):
            if llm.status().prefix.n_files:
                break
            time.sleep(0.05)
    with LLM(tiny("llama"), **options, prefix_cache_dir=tmp_path) as llm:
        again = Sent(llm, [*system, 30, 31], **ASKED).wait()
    assert (again.n_cached(), again.ids()) == (300, right)
