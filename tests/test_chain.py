"""Decode steps that are begun before the one in front is read: tokens as one by one, whatever ends or comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_relay import FakeRelay, give_relays
from sent import Sent

from pyggml import ComputeError
from pyggml.engine import LLM, Completion, FinishReason, GenerationError
from pyggml.engine.chain import Chain
from pyggml.engine.pace import Pace

PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12]]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(params=["one", "tp 2"])
def open_llm(request: pytest.FixtureRequest, tiny: Callable[..., Path]) -> Callable[..., LLM]:
    where = {"one": {"device": "cpu"}, "tp 2": {"device": "cpu,cpu", "tp": 2}}[request.param]

    def opened(parallel: int = 4, **options: Any) -> LLM:
        return LLM(tiny("llama"), ctx=600, threads=1, parallel=parallel, **where, **options)

    return opened


def ids_of(done: Sequence[Completion]) -> list[tuple[int, ...]]:
    return [tuple(answer.ids) for answer in done]


def both(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch, ask: Callable[[LLM], Any], **options: Any
) -> tuple[Any, Any, list[FakeRelay]]:
    """What is asked without and with relays, and the relays."""
    with open_llm(**options) as llm:
        right = ask(llm)
    relays = give_relays(monkeypatch)
    with open_llm(**options) as llm:
        return right, ask(llm), relays


def n_fed(relays: Sequence[FakeRelay]) -> int:
    return sum(relay.n_fed for relay in relays)


def n_dropped(relays: Sequence[FakeRelay]) -> int:
    return sum(relay.n_dropped for relay in relays)


def test_one_answer_is_the_same_and_hardly_a_step_is_in_vain(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        return ids_of(llm.generate([PROMPTS[0]], max_tokens=300, **GREEDY))  # over the end of a window

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and len(right[0]) == 300
    assert n_fed(relays) >= 290
    assert n_dropped(relays) < 5  # where the end of the answer, which is banned, was the likeliest


def test_answers_of_different_lengths_leave_one_by_one(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        sent = [Sent(llm, prompt, max_tokens=10 + 20 * i, ignore_eos=True) for i, prompt in enumerate(PROMPTS)]
        return [one.wait().ids() for one in sent]

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and [len(ids) for ids in found] == [10, 30, 50, 70]
    assert n_fed(relays) > 40


def test_more_prompts_than_slots_and_prompts_that_come_later(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        return ids_of(llm.generate(PROMPTS * 3, max_tokens=25, **GREEDY))

    right, found, relays = both(open_llm, monkeypatch, ask, parallel=3)
    assert found == right
    assert n_fed(relays) > 30


def test_an_end_by_surprise_is_no_more_than_a_step_in_vain(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_llm() as llm:
        text = llm.generate([PROMPTS[0]], max_tokens=40, **GREEDY)[0].text
    stop = text[len(text) // 2 :][:3]

    def ask(llm: LLM) -> Any:
        done = llm.generate(PROMPTS, max_tokens=40, stop=[stop], **GREEDY)
        return ids_of(done), [answer.finish_reason for answer in done]

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and FinishReason.STOP in found[1]
    assert n_fed(relays) > 10


def test_a_likeliest_token_that_is_banned_is_not_taken(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_llm() as llm:
        ids = llm.generate([PROMPTS[0]], max_tokens=40, **GREEDY)[0].ids
    late = next(token for at, token in enumerate(ids) if at > 10 and token not in ids[:at])
    bias = {late: float("-inf")}

    def ask(llm: LLM) -> Any:
        return ids_of(llm.generate(PROMPTS[:1], max_tokens=40, logit_bias=bias, **GREEDY))

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and not set(found[0]) & set(bias)
    assert n_fed(relays) > 20 and n_dropped(relays) > 0


def test_answers_that_are_drawn_are_left_alone(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        return ids_of(llm.generate(PROMPTS, max_tokens=30, temperature=1.0, seed=5, ignore_eos=True))

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and n_fed(relays) == 0


def test_many_bans_leave_the_choice_to_the_host(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        bias = {token: float("-inf") for token in range(64)}
        return ids_of(llm.generate([PROMPTS[0]], max_tokens=30, logit_bias=bias, **GREEDY))

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and n_fed(relays) == 0


def test_an_abort_in_between_leaves_the_others_and_later_ones_right(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        sent = Sent(llm, [3, 4, 5, 6], max_tokens=500, ignore_eos=True).wait_for_tokens(5)
        sent.submission.cancel()
        assert sent.wait().reason() is FinishReason.ABORT
        assert llm.status().n_running == 0
        return ids_of(llm.generate(PROMPTS, max_tokens=20, **GREEDY))

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and n_fed(relays) > 20


def test_scores_and_answers_take_turns(open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(llm: LLM) -> Any:
        stream = llm.generate([PROMPTS[0]], max_tokens=60, stream=True, **GREEDY)
        ids = list(next(iter(stream)).ids)
        scores = llm.score(PROMPTS[2] * 5)
        for delta in stream:
            ids.extend(delta.ids)
        return ids, [round(float(x), 6) for x in scores]

    right, found, relays = both(open_llm, monkeypatch, ask)
    assert found == right and n_fed(relays) > 20


def test_a_step_begun_ahead_that_fails_ends_no_answer(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(tiny("llama"), ctx=600, threads=1, parallel=4, device="cpu") as llm:
        right = ids_of(llm.generate(PROMPTS[:2], max_tokens=30, **GREEDY))
        alone = ids_of(llm.generate(PROMPTS[:1], max_tokens=30, **GREEDY))
    relays = give_relays(monkeypatch)
    with LLM(tiny("llama"), ctx=600, threads=1, parallel=4, device="cpu") as llm:
        llm.generate(PROMPTS[:2], max_tokens=5, **GREEDY)
        for relay in relays:
            relay.fails_at = relay.n_fed + 4
        assert ids_of(llm.generate(PROMPTS[:2], max_tokens=30, **GREEDY)) == right
        llm.generate(PROMPTS[:1], max_tokens=5, **GREEDY)
        relays[-1].fails_at = relays[-1].n_fed + 4
        with pytest.raises(GenerationError, match="planted"):
            llm.generate(PROMPTS[:1], max_tokens=30, **GREEDY)
        assert ids_of(llm.generate(PROMPTS[:1], max_tokens=30, **GREEDY)) == alone


def test_nothing_stays_in_flight_while_nobody_asks(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(llm: LLM) -> Any:
        text = llm.generate([PROMPTS[0]], max_tokens=40, **GREEDY)[0].text
        return llm.generate([PROMPTS[0]], max_tokens=200, stop=[text[len(text) // 2 :][:3]], **GREEDY)[0].text

    relays = give_relays(monkeypatch)
    with open_llm() as llm:
        ask(llm)
        for _ in range(1000):
            if not llm._runner.is_ahead:
                break
            time.sleep(0.01)
        assert not llm._runner.is_ahead and not any(relay._in_flight for relay in relays)
    assert n_fed(relays) > 20


def test_a_fault_of_a_step_that_nobody_wants_has_the_ranks_built_anew(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt with a beginning that another slot holds comes next: its rows are copied before any step."""
    prompt = [3 + i % 250 for i in range(300)]
    where: dict[str, Any] = {"device": "cpu,cpu", "tp": 2}
    with LLM(tiny("llama"), ctx=600, threads=1, parallel=4, **where) as llm:
        right = ids_of(llm.generate([prompt[:100] + [7, 8]], max_tokens=20, **GREEDY))
    relays = give_relays(monkeypatch)
    with LLM(tiny("llama"), ctx=600, threads=1, parallel=4, **where) as llm:
        stream = llm.generate([prompt], max_tokens=200, stream=True, **GREEDY)
        for count, _ in enumerate(stream):
            if count == 10:
                break
        relays[-1].fault = ComputeError("planted")
        stream.close()
        assert ids_of(llm.generate([prompt[:100] + [7, 8]], max_tokens=20, **GREEDY)) == right
        assert llm.status().n_rebuilds == 1 and llm._engine.last_fault == "planted"


def test_where_the_likeliest_stays_banned_steps_are_soon_taken_singly(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Chain, "serves", lambda *_: False)
    relays = give_relays(monkeypatch)
    with open_llm() as llm:
        llm.generate([PROMPTS[0]], max_tokens=250, **GREEDY)
    assert 0 < n_dropped(relays) < 12


def test_a_step_whose_end_was_not_waited_for_says_nothing_about_speed(
    open_llm: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    monkeypatch.setattr(Pace, "note_decode", lambda self, seconds: told.append(seconds))
    give_relays(monkeypatch)
    with open_llm() as llm:
        llm.generate([PROMPTS[0]], max_tokens=50, **GREEDY)
    assert told.count(0.0) > 40, "the stand-in has always finished before it is waited for"
