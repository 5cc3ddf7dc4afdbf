"""Engines that hang: they are noticed, passed by and told of, and taken again when they go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_server_replicas import lives_of

from pyggml.server import pulse
from pyggml.server.engine_link import State
from pyggml.server.errors import ServerFault
from pyggml.server.health_handler import health
from pyggml.server.messages import Generate, Load
from pyggml.server.pulse import Pulse
from pyggml.server.replicas import Replicas

HANG_S = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks and gives up in no time."""
    monkeypatch.setattr(pulse, "EVERY_S", 0.001)
    monkeypatch.setattr(pulse, "SILENT_S", 0.02)
    monkeypatch.setattr(pulse, "STALLED_S", 0.02)


async def until(is_so: Callable[[], object]) -> None:
    async def wait() -> None:
        while not is_so():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), HANG_S)


class Engine:
    """Says how it stands, unless it is silent."""

    def __init__(self, **status: Any) -> None:
        self.status = {"n_steps": 0, "n_running": 1, "n_open": 1, "state": "ready"} | status
        self.is_silent = self.is_working = False
        self.n_asked = 0
        self.ends: list[str] = []

    async def ask(self) -> dict[str, Any]:
        self.n_asked += 1
        if self.is_silent:
            await asyncio.Event().wait()
        self.status["n_steps"] += self.is_working
        return self.status

    def end(self, how: str) -> None:
        self.ends.append(how)

    def watched(self) -> Pulse:
        found = Pulse(self.ask, lambda: False, self.end)
        found.watch()
        return found


async def test_one_that_says_nothing_is_stuck_until_it_speaks_again() -> None:
    engine = Engine()
    engine.is_silent = engine.is_working = True
    watched = engine.watched()
    await until(lambda: "has not answered for" in watched.stuck)
    engine.is_silent = False
    await until(lambda: not watched.stuck)
    watched.end()


async def test_one_that_makes_no_step_with_answers_under_way_is_stuck_until_it_makes_one() -> None:
    engine = Engine()
    watched = engine.watched()
    await until(lambda: "has made no step for" in watched.stuck)
    engine.is_working = True
    await until(lambda: not watched.stuck)
    watched.end()


@pytest.mark.parametrize("status", [{"n_running": 0}, {"state": "rebuilding"}], ids=["requests wait", "it builds"])
async def test_one_from_which_no_step_is_due_is_not_stuck(status: dict[str, Any]) -> None:
    engine = Engine(**status)
    watched = engine.watched()
    await asyncio.sleep(0.1)
    assert (watched.stuck, engine.n_asked > 2) == ("", True)
    watched.end()


async def test_one_with_nothing_to_do_is_left_alone() -> None:
    engine = Engine(n_running=0, n_open=0)
    watched = engine.watched()
    await until(lambda: engine.n_asked)
    await asyncio.sleep(0.05)
    assert engine.n_asked == 1
    watched.watch()
    await until(lambda: engine.n_asked == 2)


async def test_one_that_has_ended_is_not_stuck() -> None:
    async def ended() -> dict[str, Any]:
        raise ServerFault("it has ended", code="engine_ended")

    watched = Pulse(ended, lambda: True, lambda how: None)
    watched.stuck = "has not answered for 11 s"
    watched.watch()
    await until(lambda: not watched.stuck)


@pytest.mark.parametrize(("is_silent", "why"), [(True, "has not answered for"), (False, "has made no step for")])
async def test_one_that_hangs_for_long_is_ended_once(
    is_silent: bool, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "SILENT_END_S", 0.05)
    monkeypatch.setattr(pulse, "STALLED_END_S", 0.05)
    engine = Engine()
    engine.is_silent = is_silent
    watched = engine.watched()
    await until(lambda: engine.ends)
    await asyncio.sleep(0.1)
    assert len(engine.ends) == 1 and why in engine.ends[0] and watched.stuck == engine.ends[0]


async def test_a_replica_that_hangs_gets_nothing_while_another_works_and_health_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives_of(monkeypatch, (), ())  # processes that take everything and say nothing
    replicas = Replicas([Load("m", {})] * 2, restarts=True, on_ready=lambda facts: None)
    running = asyncio.ensure_future(replicas.run())
    await until(lambda: all(replica.link.state is State.READY for replica in replicas.all))
    one, two = (replica.link for replica in replicas.all)
    two._pulse.watch = lambda: None  # type: ignore[method-assign]
    replicas.generate(Generate(0, {}, prompts=["a"])).close()  # its client leaves, and the replica is idle again
    await until(lambda: one.stuck)
    for _ in range(3):
        replicas.generate(Generate(0, {}, prompts=["b"]))
    assert (one.n_open, two.n_open) == (0, 3)
    monkeypatch.setattr("pyggml.server.health_handler.engine_statuses", _nothing)
    front: Any = SimpleNamespace(is_stopping=False, link=replicas)
    reply: Any = await health(front, SimpleNamespace(query={}))  # type: ignore[arg-type]
    assert (reply.status, json.loads(reply.body)["status"]) == (200, "degraded")
    assert "replica 0 has not answered for" in json.loads(reply.body)["reason"]
    replicas.stop()
    await asyncio.wait_for(running, HANG_S)
    assert not one.stuck


async def test_requests_of_a_replica_that_hangs_for_long_end_and_it_is_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pulse, "SILENT_END_S", 0.05)
    lives_of(monkeypatch, (), (), ())
    replicas = Replicas([Load("m", {})] * 2, restarts=True, on_ready=lambda facts: None)
    running = asyncio.ensure_future(replicas.run())
    await until(lambda: all(replica.link.state is State.READY for replica in replicas.all))
    answer = replicas.all[0].link.generate(Generate(0, {}, prompts=["a"]))
    with pytest.raises(ServerFault, match="the engine has not answered for .* s and was ended"):
        await asyncio.wait_for(anext(answer), HANG_S)
    await until(lambda: replicas.all[0].link.state is State.READY)
    assert (replicas.all[0].link.n_restarts, replicas.all[1].link.n_restarts) == (1, 0)
    replicas.stop()
    await asyncio.wait_for(running, HANG_S)


async def _nothing(front: Any) -> dict[int, Any]:
    return {}
