"""The engine's process when its engine fails within: every request ends, and the front is told why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyggml.engine import Delta, FinishReason, GenerationError
from pyggml.server import answering
from pyggml.server.answering import Answering
from pyggml.server.messages import Accepted, Cancel, Failed, Generate, Piece, frame, to_engine
from pyggml.server.outbox import Outbox


class BrokenLLM:
    """An engine that takes a prompt and never answers; its status is what the test says."""

    def __init__(self, status: Any) -> None:
        self._status = status
        self.cancelled = 0
        self.emit: Any = None
        self.model = SimpleNamespace(
            sampling=lambda **fields: None, tokenizer=SimpleNamespace(token_bytes=lambda id: b"x")
        )

    def submit(self, prompt: Any, params: Any, on_delta: Any, **options: Any) -> Any:
        self.emit = on_delta
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def status(self) -> Any:
        if isinstance(self._status, Exception):
            raise self._status
        return self._status


def started(llm: BrokenLLM) -> tuple[Answering, list[Any]]:
    sent: list[Any] = []
    return Answering(llm, Outbox(sent.extend)), sent  # type: ignore[arg-type]


async def until(is_so: Any) -> None:
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


ASKED = Generate(7, {}, prompts=[[1, 2]])


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (SimpleNamespace(state="failed", fault="a card is gone"), "a card is gone"),
        (RuntimeError("closed"), "closed"),
    ],
    ids=["says so", "cannot even tell"],
)
async def test_an_engine_that_fell_silent_is_noticed(
    status: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "WATCH_S", 0.01)
    work, _ = started(BrokenLLM(status))
    work.take(ASKED)
    assert said in await asyncio.wait_for(work.fault(), 10)


async def test_one_error_ends_a_request_and_its_other_answers_are_cancelled() -> None:
    llm = BrokenLLM(SimpleNamespace(state="ready", fault=None))
    work, sent = started(llm)
    work.take(Generate(7, {}, prompts=[[1, 2]], n=2))
    await until(lambda: any(isinstance(m, Accepted) for m in sent))
    llm.emit(Delta("", finish_reason=FinishReason.ERROR, error=GenerationError("not finite")))
    llm.emit(Delta("late", index=1))
    await until(lambda: any(isinstance(m, Failed) for m in sent))
    assert llm.cancelled == 1
    assert not any(isinstance(m, Piece) for m in sent)
    assert [m.kind for m in sent if isinstance(m, Failed)] == ["generation"]


async def test_a_request_that_is_cancelled_before_it_was_handed_over_is_cancelled_then() -> None:
    llm = BrokenLLM(SimpleNamespace(state="ready", fault=None))
    work, _ = started(llm)
    work.take(ASKED)
    work.take(Cancel(7))
    await until(lambda: llm.cancelled == 1)


def test_messages_come_back_as_they_were() -> None:
    asked = Generate(2**63, {"json_schema": {"a": [1, None, "x"]}}, prompts=["text", [1, 2]], n=3)
    body = frame([asked, Cancel(5)])[12:]
    assert to_engine.decode(body) == [asked, Cancel(5)]
