"""The engine's process when its engine fails within: every request ends, and the front is told why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pyggml.engine import Delta, FinishReason, GenerationError
from pyggml.server import StartError, answering, engine_link
from pyggml.server.answering import Answering
from pyggml.server.health_handler import health
from pyggml.server.messages import (
    Accepted,
    Broken,
    Cancel,
    Condition,
    Failed,
    Generate,
    Load,
    Piece,
    Ready,
    frame,
    to_engine,
)
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
        (SimpleNamespace(state="failed", fault="a card is gone", is_device_lost=True), "a card is gone"),
        (SimpleNamespace(state="failed", fault="a bug", is_device_lost=False), "a bug"),
        (RuntimeError("closed"), "closed"),
    ],
    ids=["a lost device", "another fault", "cannot even tell"],
)
async def test_an_engine_that_fell_silent_is_noticed(
    status: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "WATCH_S", 0.01)
    work, _ = started(BrokenLLM(status))
    work.take(ASKED)
    broken = await asyncio.wait_for(work.fault(), 10)
    assert said in broken.reason and broken.is_final is (said == "a card is gone")


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


async def test_the_front_hears_when_ranks_are_built_again_and_when_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answering, "WATCH_S", 0.01)
    status = SimpleNamespace(state="rebuilding", fault="a rank was late")
    llm = BrokenLLM(status)
    work, sent = started(llm)
    work.take(ASKED)
    await until(lambda: any(isinstance(m, Accepted) for m in sent))
    llm.emit(Delta("", finish_reason=FinishReason.ERROR, error=GenerationError("a rank was late")))
    await until(lambda: Condition(True) in sent)
    status.state = "ready"  # though no request is open any more
    await until(lambda: Condition(False) in sent)


class Life:
    """One run of an engine's process that says these messages and ends."""

    pid = 1

    def __init__(self, *messages: Any) -> None:
        self._batches: list[Any] = [list(messages), None]

    def send(self, message: Any) -> None:
        """Nobody listens."""

    def close(self, *, by_force: bool = False) -> None:
        """It ends anyhow."""

    async def receive(self) -> Any:
        return self._batches.pop(0)

    async def ended(self) -> str:
        return "the engine's process ended by signal SIGABRT"


READY = Ready({"n_slots": 1})


@pytest.mark.parametrize(
    ("lives", "restarts", "status", "said", "n_lives"),
    [
        ([(Broken("no such file", is_mistake=True),)], True, 2, "no such file", 1),
        ([(READY, Broken("a card is gone", is_final=True)), (READY,)], True, 1, "a card is gone", 1),
        ([(READY,), (READY, Broken("a card is gone", is_final=True))], True, 1, "a card is gone", 2),
        ([(READY,), (Broken("it does not fit now", is_mistake=True),)], True, 1, "does not fit now", 2),
        ([(READY,)], False, 1, "SIGABRT", 1),
        ([()], True, 1, "SIGABRT", 1),
        ([(READY,)] * 4, True, 1, "SIGABRT", 4),
    ],
    ids=["a mistake", "a lost device", "lost later", "cannot start again", "not asked to", "never ready", "too often"],
)
async def test_when_the_server_ends_with_its_engine(
    lives: list[tuple[Any, ...]], restarts: bool, status: int, said: str, n_lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = [Life(*messages) for messages in lives]
    n_before = len(waiting)

    async def start() -> Life:
        return waiting.pop(0)

    monkeypatch.setattr(engine_link.EngineProcess, "start", start)
    link = engine_link.EngineLink(Load("m", {}), restarts=restarts, on_ready=lambda facts: None)
    with pytest.raises(StartError, match=said) as ended:
        await link.run()
    assert (ended.value.status, n_before - len(waiting)) == (status, n_lives)


@pytest.mark.parametrize(("state", "status"), [("ready", 200), ("rebuilding", 503), ("failed", 503)])
async def test_health_is_that_of_the_engine(state: str, status: int) -> None:
    async def call(make: Any) -> dict[str, Any]:
        return {"state": state, "fault": "a rank was late" if status == 503 else None}

    replica = SimpleNamespace(number=0, link=SimpleNamespace(call=call))
    link = SimpleNamespace(state=engine_link.State.READY, reason="", ready=[replica])
    reply: Any = await health(SimpleNamespace(is_stopping=False, link=link), SimpleNamespace(query={}))  # type: ignore
    assert reply.status == status
    assert (b"a rank was late" in reply.body) is (status == 503)


def test_messages_come_back_as_they_were() -> None:
    asked = Generate(2**63, {"json_schema": {"a": [1, None, "x"]}}, prompts=["text", [1, 2]], n=3)
    body = frame([asked, Cancel(5)])[12:]
    assert to_engine.decode(body) == [asked, Cancel(5)]
