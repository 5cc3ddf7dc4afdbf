"""Several replicas behind one front: where requests go, and what is lost with one of them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from forced import write_forced
from server_process import HANG_S, ServerProcess, stream_of

from pyggml.server import StartError, engine_link, restarts
from pyggml.server.answer import Answer
from pyggml.server.engine_link import State
from pyggml.server.errors import ServerFault
from pyggml.server.health_handler import health
from pyggml.server.held_prefixes import (
    BLOCK_BYTES,
    BLOCK_TOKENS,
    HeldPrefixes,
    blocks_of,
    n_common,
    prompt_bytes,
)
from pyggml.server.messages import Broken, Chat, Generate, Load, Piece, Ready
from pyggml.server.replicas import Replicas
from pyggml.server.spread import SpreadAnswer, dealt

CHAT = "/v1/chat/completions"
ENDLESS = {"messages": [{"role": "user", "content": "QQ"}], "max_tokens": 60_000, "temperature": 0}
TWO = ("--dp", 2, "--device", "cpu,cpu", "--ctx", 65536, "--parallel", 3, "--threads", 1)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends."""
    path = tmp_path_factory.mktemp("serve") / "loop.gguf"
    return write_forced(path, "around and ", loops=True, n_ctx=65536).path


def rows(server: ServerProcess) -> list[dict[str, Any]]:
    """The replicas of a server."""
    found: list[dict[str, Any]] = server.get("/status").json["replicas"]
    return found


def until(is_so: Any) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


# What is held


def text_of(n_blocks: int, kind: str = "a") -> bytes:
    return (kind * BLOCK_BYTES * n_blocks).encode()


def test_blocks_are_those_of_a_common_beginning() -> None:
    a = blocks_of(text_of(5) + b"b" * BLOCK_BYTES)
    others = (text_of(5), text_of(9), text_of(3) + b"xyz", text_of(4, "b"), b"")
    assert [n_common(a, blocks_of(data)) for data in others] == [5, 5, 3, 0, 0]


def test_a_longer_conversation_begins_as_the_shorter_one_did() -> None:
    def asked(*texts: str) -> Generate:
        return Generate(0, {}, chat=Chat([{"role": "user", "content": text} for text in texts]))

    long = "tell me " * 100
    before, after = (blocks_of(prompt_bytes(a)) for a in (asked(long), asked(long, "and more")))
    assert n_common(before, after) == len(before) > 4


@pytest.mark.parametrize("prompt", ["\ud800", [2**40], [1, 2**70]], ids=["a surrogate", "a large id", "a huge id"])
def test_what_the_engine_will_refuse_is_no_mistake_of_routing(prompt: Any) -> None:
    assert prompt_bytes(Generate(0, {}, prompts=[prompt])) == b""


def test_as_many_sequences_are_held_as_there_are_slots_and_a_conversation_keeps_its_own() -> None:
    held = HeldPrefixes()
    for kind in "abc":
        held.hold(blocks_of(text_of(8, kind)), 2)
    assert [held.n_common(blocks_of(text_of(8, kind))) for kind in "abc"] == [0, 8, 8]
    held.hold(blocks_of(text_of(12, "c")), 2)  # goes on: takes the place of the shorter one
    assert [held.n_common(blocks_of(text_of(20, kind))) for kind in "bc"] == [8, 12]


# Where requests go


class FakeLink:
    """An engine that takes everything."""

    def __init__(self, n_slots: int = 4) -> None:
        self.state, self.facts, self.reason = State.READY, {"n_slots": n_slots}, ""
        self.n_answers = self.n_tokens_to_do = 0
        self.is_rebuilding, self.stuck = False, ""

    def generate(self, asked: Generate) -> Any:
        return SimpleNamespace()


def replicas_of(*links: FakeLink, **options: Any) -> Replicas:
    found = Replicas([Load("m", options)] * len(links), restarts=True, on_ready=lambda facts: None)
    for replica, link in zip(found.all, links):
        replica.link = link  # type: ignore[assignment]
    return found


async def sent(replicas: Replicas, text: str, **fields: Any) -> int:
    """The number of the replica that got a request."""
    before = [replica.n_routed for replica in replicas.all]
    replicas.generate(Generate(0, {}, prompts=[text], **fields))
    after = [replica.n_routed for replica in replicas.all]
    return [b - a for a, b in zip(before, after)].index(1)


async def test_what_no_replica_knows_goes_round() -> None:
    replicas = replicas_of(FakeLink(), FakeLink(), FakeLink())
    assert [await sent(replicas, f"{i}" * 5000) for i in range(6)] == [0, 1, 2, 0, 1, 2]


async def test_a_known_beginning_goes_where_it_is_held() -> None:
    replicas = replicas_of(FakeLink(), FakeLink(), FakeLink())
    first = [await sent(replicas, kind * 5000) for kind in "abc"]
    assert [await sent(replicas, kind * 5000 + "more") for kind in "cab"] == [first[2], first[0], first[1]]
    assert [replica.n_by_prefix for replica in replicas.all] == [1, 1, 1]


@pytest.mark.parametrize(
    ("todo", "n_answers", "chosen"),
    [(0, 1, 0), (10 * BLOCK_TOKENS, 1, 0), (10_000, 3, 1), (0, 4, 1)],
    ids=["idle", "busy", "busier than that is worth", "no slot is free"],
)
async def test_a_known_beginning_counts_for_as_much_as_it_saves(todo: int, n_answers: int, chosen: int) -> None:
    one, two = FakeLink(), FakeLink()
    replicas = replicas_of(one, two)
    assert await sent(replicas, "a" * BLOCK_BYTES * 50) == 0
    one.n_tokens_to_do, one.n_answers = todo, n_answers
    assert await sent(replicas, "a" * BLOCK_BYTES * 50) == chosen


@pytest.mark.parametrize(
    ("options", "fields"), [({"prefix_cache": False}, {}), ({}, {"cache_prompt": False})], ids=["off", "not wanted"]
)
async def test_without_the_prefix_cache_only_load_counts(options: dict[str, Any], fields: dict[str, Any]) -> None:
    replicas = replicas_of(FakeLink(), FakeLink(), **options)
    assert [await sent(replicas, "a" * 5000, **fields) for _ in range(4)] == [0, 1, 0, 1]


async def test_one_that_does_not_answer_gets_nothing() -> None:
    one, two = FakeLink(), FakeLink()
    replicas = replicas_of(one, two)
    one.state = State.BROKEN
    assert [await sent(replicas, "a" * 500) for _ in range(3)] == [1, 1, 1]


async def test_one_that_builds_its_ranks_again_or_hangs_gets_nothing_unless_all_do() -> None:
    one, two = FakeLink(), FakeLink()
    replicas = replicas_of(one, two)
    one.is_rebuilding = True
    assert [await sent(replicas, "a" * 500) for _ in range(2)] == [1, 1]
    two.is_rebuilding = True
    assert await sent(replicas, "b" * 500) == 0
    one.is_rebuilding, two.stuck, two.is_rebuilding = False, "has not answered for 12 s", False
    assert await sent(replicas, "c" * 500) == 0


@pytest.mark.parametrize(
    ("sizes", "loads", "parts"),
    [
        ([5, 5, 5, 5], [0, 0], [[0, 2], [1, 3]]),
        ([9, 1, 1, 1], [0, 0], [[0], [1, 2, 3]]),
        ([5, 5], [100, 0], [[], [0, 1]]),
        ([0, 0, 0], [0, 0], [[0, 2], [1]]),
    ],
    ids=["alike", "by size", "by load", "empty"],
)
def test_prompts_are_dealt_to_who_has_least_to_do(
    sizes: list[int], loads: list[int], parts: list[list[int]]
) -> None:
    assert dealt(sizes, loads) == parts


async def test_one_error_ends_an_answer_in_parts_and_all_parts_are_left() -> None:
    left: list[int] = []
    one, two = (Answer(id, 2, lambda answer: left.append(answer.id)) for id in (1, 2))
    with SpreadAnswer({one: [0, 2], two: [1]}, 1) as answer:
        one.accept([10, 12])
        two.accept([11])
        assert await answer.accepted() == [10, 11, 12]
        one.add(Piece(1, 1, "of the third", [5], finish_reason="stop"))
        assert (await anext(answer)).index == 2
        two.fail(ServerFault("gone"))
        one.fail(ServerFault("gone too"))
        with pytest.raises(ServerFault, match="^gone$"):
            await anext(answer)
    assert sorted(left) == [1, 2]


# What becomes of the server


class Life:
    """One run of an engine's process that says these messages and ends, or runs until it is closed."""

    pid = 1

    def __init__(self, *messages: Any, is_long: bool = False) -> None:
        self._batches: list[Any] = [list(messages)]
        self._closed = asyncio.Event()
        if not is_long:
            self._closed.set()

    def send(self, message: Any) -> None:
        """Nobody listens."""

    def close(self, *, by_force: bool = False) -> None:
        self._closed.set()

    async def receive(self) -> Any:
        if self._batches:
            return self._batches.pop()
        await self._closed.wait()
        return None

    async def ended(self) -> str:
        return "the engine's process ended by signal SIGABRT"


def ready() -> Ready:
    return Ready({"n_slots": 1, "n_ctx": 64, "notes": [], "plan_lines": [], "plan": []})


def lives_of(monkeypatch: pytest.MonkeyPatch, *lives: tuple[Any, ...]) -> list[Life]:
    """Processes in the order in which they start; () in the place of one that runs on."""
    waiting = [Life(*messages) if messages else Life(ready(), is_long=True) for messages in lives]

    async def start() -> Life:
        return waiting.pop(0)

    monkeypatch.setattr(engine_link.EngineProcess, "start", start)
    monkeypatch.setattr(restarts, "FIRST_PAUSE_S", 0.001)
    return waiting


async def test_one_that_cannot_start_again_stays_out_and_the_others_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = (Broken("no device", is_final=True),)
    waiting = lives_of(monkeypatch, (ready(), *lost), (), lost, lost, lost)
    told: list[dict[str, Any]] = []
    replicas = Replicas([Load("m", {})] * 2, restarts=True, on_ready=told.append)
    running = asyncio.ensure_future(replicas.run())
    while replicas.all[0].link.state is not State.OUT:
        await asyncio.sleep(0.001)
    front: Any = SimpleNamespace(is_stopping=False, link=replicas)
    monkeypatch.setattr("pyggml.server.health_handler.engine_statuses", _nothing)
    reply: Any = await health(front, SimpleNamespace(query={}))  # type: ignore[arg-type]
    assert (reply.status, json.loads(reply.body)["status"]) == (200, "degraded")
    assert "replica 0 stays out: no device" in json.loads(reply.body)["reason"]
    assert (waiting, replicas.state, replicas.n_restarts) == ([], State.READY, 3)
    replicas.stop()
    await asyncio.wait_for(running, 10)
    assert len(told) == 1


async def _nothing(front: Any) -> dict[int, Any]:
    return {}


@pytest.mark.parametrize(
    ("lives", "restarts", "status", "said"),
    [
        ([(Broken("no such file", is_mistake=True),), ()], True, 2, "no such file"),
        ([(ready(),), ()], False, 1, "SIGABRT"),
        ([(ready(),)] * 8, True, 1, "no replica is left"),
        ([(Broken("a bug"),)] * 8, True, 1, "no replica is left"),
    ],
    ids=["a mistake", "not asked to start again", "all gone", "all never ready"],
)
async def test_when_the_server_ends_with_its_replicas(
    lives: list[tuple[Any, ...]], restarts: bool, status: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives_of(monkeypatch, *lives)
    replicas = Replicas([Load("m", {})] * 2, restarts=restarts, on_ready=lambda facts: None)
    with pytest.raises(StartError, match=said) as ended:
        await asyncio.wait_for(replicas.run(), 10)
    assert ended.value.status == status


# Processes


def test_a_killed_replica_loses_only_its_own_requests_and_comes_back(endless: Path) -> None:
    with ServerProcess(endless, *TWO) as server:
        streams = [stream_of(server, CHAT, ENDLESS) for _ in range(4)]
        for stream in streams:
            next(stream)
        before = rows(server)
        assert [row["n_open"] for row in before] == [2, 2]
        ends: list[list[Any]] = [[], [], [], []]

        def read(i: int) -> None:
            ends[i] = [event for _, event in streams[i]]

        threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        os.kill(before[1]["pid"], signal.SIGKILL)
        until(lambda: server.get("/health").json["status"] == "degraded")
        assert server.get("/health").status == 200
        assert 'pyggml_replica_up{replica="1"} 0.0' in server.get("/metrics").body.decode()
        assert server.chat(max_tokens=3, temperature=0).status == 200  # by the one that is left
        until(lambda: server.get("/health").json["status"] == "ok")
        after = rows(server)
        assert [row["n_restarts"] for row in after] == [0, 1]
        assert (after[0]["pid"], after[1]["pid"] != before[1]["pid"]) == (before[0]["pid"], True)
        assert [row["n_open"] for row in after] == [2, 0]
        for thread in threads:
            thread.join(1)
        ended = [events for events in ends if events]
        assert len(ended) == 2
        for events in ended:
            assert [("error" in event) for event in events] == [False] * (len(events) - 1) + [True]
            assert events[-1]["error"]["code"] == "engine_ended"
        assert {server.chat(max_tokens=2).status for _ in range(4)} == {200}
        assert rows(server)[1]["n_routed"] > after[1]["n_routed"]
        server.process.kill()
        for thread in threads:
            thread.join(HANG_S)


def test_without_any_replica_health_is_503_until_one_is_back(endless: Path) -> None:
    with ServerProcess(endless, *TWO) as server:
        for row in rows(server):
            os.kill(row["pid"], signal.SIGKILL)
        until(lambda: server.get("/health").status == 503)
        refused = server.chat(max_tokens=2)
        assert (refused.status, refused.json["error"]["type"]) == (503, "unavailable_error")
        until(lambda: server.get("/health").json["status"] == "ok")
        assert [row["n_restarts"] for row in rows(server)] == [1, 1]
        assert server.chat(max_tokens=2).status == 200


def test_the_start_tells_of_every_replica(endless: Path) -> None:
    with ServerProcess(endless, *TWO, "--pin") as server:
        told = [line[:15] for line in server.lines if line.startswith("replica")]
        assert told == ["replica 0: cpu ", "replica 1: cpu "]
        pids = [row["pid"] for row in rows(server)]
        able = sorted(os.sched_getaffinity(0))
        if len(able) > 1:
            assert not os.sched_getaffinity(pids[0]) & os.sched_getaffinity(pids[1])


def test_a_stop_lets_the_answers_of_all_replicas_end(endless: Path) -> None:
    with ServerProcess(endless, *TWO) as server:
        streams = [stream_of(server, CHAT, ENDLESS | {"max_tokens": 500}) for _ in range(4)]
        for stream in streams:
            next(stream)
        assert [row["n_routed"] for row in rows(server)] == [2, 2]
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            *_, (_, last) = stream
            assert last["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(HANG_S) == 0


def test_conversations_go_on_at_their_replica_and_may_have_several_answers(endless: Path) -> None:
    with ServerProcess(endless, *TWO) as server:
        for i in range(2):
            asked: dict[str, Any] = {"input": f"{i}" * 2000, "max_output_tokens": 3, "temperature": 0}
            before = server.post("/v1/responses", asked).json
            for _ in range(2):
                asked = {"input": "more", "previous_response_id": before["id"], "max_output_tokens": 3}
                before = server.post("/v1/responses", asked).json
                assert before["usage"]["input_tokens_details"]["cached_tokens"] > 500
        assert [row["n_routed"] for row in rows(server)] == [3, 3]
        assert [row["n_routed_by_prefix"] for row in rows(server)] == [2, 2]
        reply = server.chat(max_tokens=3, n=3)
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1, 2]


def test_the_prompts_of_a_request_are_dealt_over_the_replicas(tiny: Callable[..., Path]) -> None:
    prompts = [[5 + i, 9, 11 + i] for i in range(5)]
    asked = {"prompt": prompts, "n": 2, "max_tokens": 4, "temperature": 0, "logprobs": 1, "ignore_eos": True}
    found = []
    for arguments in ((), ("--dp", 2, "--device", "cpu,cpu")):
        with ServerProcess(tiny("llama"), "--ctx", 256, "--parallel", 2, *arguments) as server:
            reply = server.post("/v1/completions", asked).json
            stream = server.post("/v1/completions", asked | {"stream": True}).events
            texts = [""] * 10
            for event in stream:
                for choice in event["choices"]:
                    texts[choice["index"]] += choice["text"]
            assert texts == [choice["text"] for choice in reply["choices"]]
            vectors = server.post("/v1/embeddings", {"input": prompts}).json["data"]
            n_routed = [row["n_routed"] for row in rows(server)]
            assert n_routed == [2] * len(n_routed)
            found.append((texts, reply["usage"]["prompt_tokens"], [row["embedding"][:4] for row in vectors]))
    assert found[0][:2] == found[1][:2]
    np.testing.assert_allclose(found[0][2], found[1][2], atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--dp", 2, "--device", "cpu"), "lists 1 device for --dp 2, .* need 2; use --device cpu,cpu"),
        (("--dp", 2, "--tp", 2, "--device", "cpu,cpu,cpu,cpu,cpu,cpu"), "use --dp 3"),
        (("--dp", 2, "--device", "cpu,cpu,cpu,cpu"), "use --dp 4"),
        (("--dp", 2, "--device", "cpu,cpu", "--ctx", 10**9), "replica 0 .cpu.: ctx = 1000000000 .* these fit: .*--ctx"),
        (("--dp", 0), "--dp"),
    ],
    ids=str,
)
def test_what_cannot_be_dealt_ends_with_2_and_says_what_works(
    endless: Path, arguments: tuple[Any, ...], said: str
) -> None:
    with ServerProcess(endless, *arguments, waits=False) as server:
        assert server.process.wait(HANG_S) == 2
        server.wait_for(re.compile("pyggml serve: .*" + said))


@pytest.mark.parametrize("mode", ["--tp", "--layer-split"])
def test_replicas_may_be_groups(mode: str, tiny: Callable[..., Path]) -> None:
    devices = ("--device", "cpu,cpu,cpu,cpu", mode, 2, "--ctx", 256, "--parallel", 1)
    with ServerProcess(tiny("llama"), "--dp", 2, *devices) as server:
        assert [row["devices"] for row in rows(server)] == [["cpu", "cpu"], ["cpu", "cpu"]]
        asked = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}
        texts = [server.post("/v1/completions", asked).json["choices"][0]["text"] for _ in range(2)]
        assert texts[0] == texts[1]
        assert [row["n_routed"] for row in rows(server)] == [1, 1]
