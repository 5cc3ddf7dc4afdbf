"""Ranks on cards that take turns on two micro-batches: the results of one after the other, by every transport.

Needs two CUDA cards: `pytest tests/gpu/test_turns_cards.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine import LLM, rig
from pyggml.engine.runner import Runner

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(len(CARDS) < 2, reason="fewer than two CUDA cards")

PROMPT = [3 + 7 * i % 250 for i in range(900)]
MICRO_BATCH = 128


@pytest.mark.parametrize("transport", ["push", "nccl", "push-shm", "host"])
@pytest.mark.parametrize("options", [{}, {"variant": "moe"}, {"quant": "Q8_0", "n_ff": 768}], ids=str)
def test_prompts_come_out_as_one_after_the_other(
    options: dict[str, Any], transport: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if transport == "push-shm":
        monkeypatch.setenv("PYGGML_P2P", "0")
    found = []
    for takes_turns in (False, True):

        def open_runner(ranks: Any, hp: Any, family: Any, batch: int | None, turns: bool = takes_turns) -> Runner:
            return Runner(ranks, hp, family, MICRO_BATCH, takes_turns=turns)

        monkeypatch.setattr(rig, "open_runner", open_runner)
        with LLM(
            tiny("llama", **options), tp=2, transport=transport, ctx=1024, threads=4, prefix_cache=False
        ) as llm:
            for _ in range(3):
                logits = llm.score(PROMPT, logits=True, first=len(PROMPT) - 1)
                answers = [
                    llm.generate([PROMPT[:n]], temperature=0, ignore_eos=True, max_tokens=20)[0].ids
                    for n in (1, 128, 129, 256, 500, 900)
                ]
                found.append((logits, answers))
    right, answers = found[0]
    for logits, others in found[1:]:
        assert np.array_equal(logits, right) and others == answers
