"""Texts are formed while the next step runs: in order, none twice, none after the last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.engine import LLM, FinishReason, GenerationError, SamplingParams

OPEN: dict[str, Any] = {"ctx": 256, "threads": 1}
MODES: dict[str, dict[str, Any]] = {
    "one": {"device": "cpu"},
    "tp 2": {"device": "cpu,cpu", "tp": 2},
    "layer split 2": {"device": "cpu,cpu", "layer_split": 2},
}


@pytest.fixture(params=MODES)
def llm(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Any:
    with LLM(tiny("llama"), **OPEN, **MODES[request.param], parallel=3) as opened:
        yield opened


def collected(llm: LLM, prompts: list[list[int]], **options: Any) -> tuple[list[list[int]], list[FinishReason]]:
    ids: list[list[int]] = [[] for _ in prompts]
    ends: dict[int, FinishReason] = {}
    for delta in llm.generate(prompts, stream=True, temperature=0, ignore_eos=True, **options):
        assert delta.index not in ends, "nothing comes after the last event"
        ids[delta.index].extend(delta.ids)
        if delta.finish_reason is not None:
            ends[delta.index] = delta.finish_reason
    return ids, [ends[i] for i in range(len(prompts))]


def test_every_token_is_told_once_and_in_order(llm: LLM) -> None:
    prompts = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12]]
    ids, ends = collected(llm, prompts, max_tokens=40)
    assert ends == [FinishReason.LENGTH] * 4
    for prompt, told in zip(prompts, ids):
        alone = llm.generate([prompt], temperature=0, ignore_eos=True, max_tokens=40)[0]
        assert told == list(alone.ids) and len(told) == 40


def test_an_abort_ends_an_answer_after_what_was_taken(llm: LLM) -> None:
    seen: list[Any] = []
    is_over = threading.Event()

    def take(delta: Any) -> None:
        seen.append(delta)
        if delta.finish_reason is not None:
            is_over.set()

    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=200)
    sent = llm.submit([3, 4, 5], params, take)
    while len(seen) < 5:
        is_over.wait(0.001)
    sent.cancel()
    assert is_over.wait(60)
    right = llm.generate([[3, 4, 5]], temperature=0, ignore_eos=True, max_tokens=200)[0].ids
    told = tuple(id for delta in seen for id in delta.ids)
    assert seen[-1].finish_reason is FinishReason.ABORT and told == right[: len(told)]
    assert seen[-1].stats.n_generated == len(told)


def test_a_text_that_cannot_be_formed_ends_its_answer_only(llm: LLM) -> None:
    n_pushed = 0
    begin = llm._intake.answer

    def breaking(*args: Any, **kwargs: Any) -> Any:
        request = begin(*args, **kwargs)
        push = request.text.push

        def broken(id: int) -> str:
            nonlocal n_pushed
            n_pushed += 1
            if request.index == 1 and n_pushed > 6:
                raise RuntimeError("planted")
            return push(id)

        request.text.push = broken
        return request

    llm._intake.answer = breaking  # type: ignore[method-assign]
    ended: list[int] = []
    with pytest.raises(GenerationError, match="planted"):
        for delta in llm.generate([[3], [4], [5]], stream=True, temperature=0, ignore_eos=True, max_tokens=30):
            ended += [delta.index] if delta.finish_reason else []
    assert ended == []
    llm._intake.answer = begin  # type: ignore[method-assign]
    assert len(llm.generate([[3]], temperature=0, ignore_eos=True, max_tokens=10)[0].ids) == 10
