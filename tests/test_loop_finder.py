"""Answers in a loop are found, and nothing else is."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from forced import write_forced
from hypothesis import given, settings
from hypothesis import strategies as st

from pyggml.engine import LLM, FinishReason, RequestError, SamplingParams
from pyggml.engine.loop_finder import MAX_PERIOD, MIN_TOKENS, LoopFinder


def naive(tokens: list[int], limit: int) -> bool:
    """Whether the last tokens are one sequence so many times in a row."""
    for period in range(1, MAX_PERIOD + 1):
        n = max(limit * period, MIN_TOKENS)
        tail = tokens[-n:]
        if len(tail) == n and all(tail[i] == tail[i - period] for i in range(period, n)):
            return True
    return False


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 5), st.integers(1, 70), st.integers(0, 10), st.randoms(use_true_random=False))
def test_a_loop_is_found_as_soon_as_it_is_one(limit: int, period: int, n_before: int, rng: random.Random) -> None:
    cycle = [rng.randrange(4) for _ in range(period)]
    tokens = [rng.randrange(4) for _ in range(n_before)] + cycle * (limit + 1 + MIN_TOKENS // period)
    finder = LoopFinder(limit)
    for i, token in enumerate(tokens):
        found = finder.push(token)
        assert found == naive(tokens[: i + 1], limit)
        if found:
            return


def test_an_endless_answer_ends_with_its_reason(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "abcdefgh", loops=True).path
    with LLM(path, device="cpu", threads=1, ctx=1024) as llm:
        plain = llm.generate("x", temperature=0, max_tokens=300)
        ended = llm.generate("x", temperature=0, max_tokens=300, loop_limit=10)
    assert plain.finish_reason is FinishReason.LENGTH
    assert ended.finish_reason is FinishReason.REPETITION
    assert ended.stats.n_generated == 80 and plain.startswith(ended)


@pytest.mark.parametrize("limit", [1, -1, 2.5, True])
def test_limits_that_make_no_sense_are_refused(limit: object) -> None:
    with pytest.raises(RequestError, match="loop_limit"):
        SamplingParams(loop_limit=limit)  # type: ignore[arg-type]
