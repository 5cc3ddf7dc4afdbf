"""Texts are formed while the next step runs: in order, none twice, none after the last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyggml as gg
from pyggml.engine import LLM, FinishReason, GenerationError, SamplingParams
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.plan import Plan

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


def test_stages_have_several_micro_batches_in_flight(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage works on one while the next one does on another: nobody waits for the last stage before it posts more."""
    in_flight, most = [0], [0]
    post, finish, wait = Plan.post, Plan.finish, gg.Group.wait

    def posted(plan: Plan) -> None:
        in_flight[0] += 1
        most[0] = max(most[0], in_flight[0])
        post(plan)

    def finished(plan: Plan) -> None:
        in_flight[0] = 0
        finish(plan)

    def waited(group: gg.Group, n_left: int = 0) -> None:
        in_flight[0] = min(in_flight[0], n_left)
        wait(group, n_left)

    monkeypatch.setattr(Plan, "post", posted)
    monkeypatch.setattr(Plan, "finish", finished)
    monkeypatch.setattr(gg.Group, "wait", waited)
    with LLM(tiny("llama"), **OPEN, **MODES["layer split 2"], batch=8, parallel=1) as llm:
        llm.generate([[(7 * i) % 250 for i in range(200)]], temperature=0, max_tokens=1)
    assert most[0] == 3, "two stages, and one that is filled meanwhile"


def test_ranks_are_the_devices_in_the_order_of_the_list(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama", n_layer=3), **OPEN, device="cpu,cpu", layer_split=2, tensor_split="1,2") as llm:
        assert [len(rank.layers) for rank in llm._loaded.ranks.ranks] == [1, 2]
    given = [SimpleNamespace(name=name) for name in ("cuda:3", "cuda:1", "cuda:7", "cuda:1")]
    named = {device.name: device for device in given}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gg, "device", lambda name: named[name])
        for mode in ({"tp": 4}, {"layer_split": 4}):
            devices = LoadOptions(device="cuda:3,cuda:1,cuda:7,cuda:1", **mode).devices()
            assert [device.name for device in devices] == ["cuda:3", "cuda:1", "cuda:7", "cuda:1"]
