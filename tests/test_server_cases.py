"""Cases from reports about servers like this one: conversations that mix, one bad request among good ones, more."""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forced import write_bag, write_chain, write_forced
from server_process import Reply, ServerProcess

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
THUMB = [b"\xf0\x9f", b"\x91", b"\x8d"]
# In the engine's process: steps that decode 3 requests at once fail, and all with a prompt that begins with token 7.
FAILING = """
import importlib.util, os, sys
if any("pyggml.server.worker" in word for word in sys.orig_argv):
    {before}
    from pyggml.engine.runner import Runner
    run, seen = Runner.run, []
    def failing(self, batch, meanwhile):
        if batch.phase.value == "decode" and len(batch.rows) == 3:
            seen.append(True)
        if seen and any(row.request.ids[0] == 7 for row in batch.rows):
            raise RuntimeError("planted")
        return run(self, batch, meanwhile)
    Runner.run = failing
"""
# A sitecustomize that was there before is run first.
BEFORE = "spec = importlib.util.spec_from_file_location('before', {path!r}); spec.loader.exec_module(importlib.util.module_from_spec(spec))"  # noqa: E501


def all_at_once(server: ServerProcess, bodies: list[dict[str, Any]], path: str = COMPLETIONS) -> list[Reply]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: server.post(path, body), bodies))


@pytest.fixture(scope="module")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model whose words are those of its context, with room for two conversations."""
    path = write_bag(tmp_path_factory.mktemp("serve") / "bag.gguf", scale=4.0)
    with ServerProcess(path, "--ctx", 256, "--parallel", 2, "--threads", 1, "--batch", 32) as server:
        yield server


@pytest.fixture(scope="module")
def flat(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model for which all tokens are alike, of which the server takes the likeliest by itself."""
    path = write_chain(tmp_path_factory.mktemp("serve") / "flat.gguf", {}, scale=0)
    with ServerProcess(path, "--ctx", 256, "--threads", 1, "--temperature", 0) as server:
        yield server


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that never ends."""
    path = write_forced(tmp_path_factory.mktemp("serve") / "loop.gguf", "abcdefgh", loops=True).path
    with ServerProcess(path, "--ctx", 2048, "--parallel", 4, "--threads", 1) as server:
        yield server


def test_twenty_conversations_on_two_slots_never_mix(bag: ServerProcess) -> None:
    rng = random.Random(2)
    lows = [21 if i % 2 else 41 for i in range(20)]
    prompts = [[rng.randrange(low, low + 9) for _ in range(rng.randrange(1, 120))] for low in lows]
    asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 20}
    replies = all_at_once(bag, [asked | {"prompt": prompt} for prompt in prompts])
    for low, prompt, reply in zip(lows, prompts, replies):
        assert reply.status == 200, reply.body
        (choice,) = reply.json["choices"]
        own = {chr(id) for id in range(low, low + 9)}  # a byte's token is its number
        assert len(choice["text"]) == 8 and set(choice["text"]) <= own
        for top in choice["logprobs"]["top_logprobs"]:
            unseen = min(top.values())  # of 20 at least 11 are in nobody's context
            assert {word for word, logprob in top.items() if logprob > unseen + 1e-3} <= own
        usage = reply.json["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] - 1 == len(prompt) - 1


def test_a_step_that_fails_ends_only_the_request_that_cannot_do_it_alone(tmp_path: Path) -> None:
    there = sys.modules.get("sitecustomize")
    before = BEFORE.format(path=there.__file__) if there is not None and there.__file__ else "pass"
    (tmp_path / "sitecustomize.py").write_text(FAILING.format(before=before))
    path = write_forced(tmp_path / "loop.gguf", "abcdefgh", loops=True).path
    python_path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ServerProcess(path, "--ctx", 1024, "--parallel", 3, "--threads", 1, PYTHONPATH=python_path) as server:
        bodies = [{"prompt": [first, 20], "max_tokens": 900, "temperature": 0} for first in (7, 21, 22)]
        replies = all_at_once(server, bodies)
        assert [reply.status for reply in replies] == [500, 200, 200]
        assert "planted" in replies[0].json["error"]["message"]
        assert [reply.json["choices"][0]["text"] for reply in replies[1:]] == [("abcdefgh" * 113)[:900]] * 2
        assert server.chat(max_tokens=3).json["choices"][0]["message"]["content"] == "abc"
        assert server.get("/status").json["n_restarts"] == 0


def test_a_seeded_answer_is_the_same_beside_others(flat: ServerProcess) -> None:
    asked: dict[str, Any] = {"prompt": "x", "temperature": 0.8, "top_k": 0, "max_tokens": 16, "ignore_eos": True}
    alone = flat.post(COMPLETIONS, asked | {"seed": 42}).json["choices"][0]["text"]
    for other in ({}, {"seed": 7}, {}, {"seed": 7}):
        first, *_ = all_at_once(flat, [asked | {"seed": 42}, asked | {"prompt": "y"} | other])
        assert first.json["choices"][0]["text"] == alone


def test_each_choice_ends_for_its_own_reason(flat: ServerProcess) -> None:
    asked = {"prompt": "x", "n": 8, "seed": 1, "temperature": 1.0, "top_k": 0, "top_p": 1, "min_p": 0}
    asked |= {"max_tokens": 40, "ignore_eos": True, "stop": list("abcdefgh")}
    first, second = (flat.post(COMPLETIONS, asked).json["choices"] for _ in range(2))
    assert first == second and [choice["index"] for choice in first] == list(range(8))
    assert {choice["finish_reason"] for choice in first} == {"stop", "length"}


def test_the_requests_value_wins_over_the_servers(flat: ServerProcess) -> None:
    def text(**fields: Any) -> str:
        body = {"prompt": "x", "max_tokens": 16, "ignore_eos": True, "seed": 5} | fields
        found: str = flat.post(COMPLETIONS, body).json["choices"][0]["text"]
        return found

    assert text() == text(seed=6) == text(temperature=None)
    assert text(temperature=1.0, top_k=0) != text(temperature=1.0, top_k=0, seed=6)


def test_choices_do_not_share_halves_of_characters(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", ["a", *THUMB, "b"]).path
    with ServerProcess(path, "--ctx", 256, "--parallel", 4, "--threads", 1) as server:
        joined = ["", "", "", ""]
        for event in server.chat("QQ", n=4, stream=True).events:
            for choice in event["choices"]:
                joined[choice["index"]] += choice["delta"].get("content", "")
    assert joined == ["a👍b"] * 4


def test_the_answer_after_a_prompt_of_nothing(gemma3: Path, loop: ServerProcess) -> None:
    with ServerProcess(gemma3, "--ctx", 128) as server:
        reply = server.post(COMPLETIONS, {"prompt": "", "max_tokens": 2, "temperature": 0})
        assert (reply.status, reply.json["usage"]["prompt_tokens"]) == (200, 1)  # its vocabulary begins every text
    assert loop.post(COMPLETIONS, {"prompt": "", "max_tokens": 2}).status == 400
    assert loop.chat("", max_tokens=2).status == 200


@pytest.mark.parametrize("asks", [True, False])
def test_usage_of_streamed_completions(asks: bool, loop: ServerProcess) -> None:
    body = {"prompt": "x", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": asks}}
    events = loop.post(COMPLETIONS, body).events
    assert [event["choices"] == [] for event in events[-1:]] == [asks]
    assert [event.get("usage") for event in events[:-1]] == [None] * (len(events) - 1)


def test_requests_at_once_share_their_steps(loop: ServerProcess) -> None:
    def n_steps() -> int:
        found: int = loop.get("/status").json["engine"]["n_decode_steps"]
        return found

    before = n_steps()
    replies = all_at_once(loop, [{"prompt": "x", "max_tokens": 300, "temperature": 0}] * 4)
    assert [reply.status for reply in replies] == [200] * 4
    assert n_steps() - before < 4 * 300 / 1.5


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_answer_in_circles_says_so(is_stream: bool, loop: ServerProcess) -> None:
    reply = loop.chat(loop_limit=5, max_tokens=1000, stream=is_stream)
    last = reply.events[-1] if is_stream else reply.json
    assert last["choices"][0]["finish_reason"] == "repetition"


def test_only_this_machine_is_listened_to(loop: ServerProcess) -> None:
    assert loop.host == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", loop.port), 5):
        pass


def test_status_tells_what_was_chosen(loop: ServerProcess) -> None:
    status = loop.get("/status").json
    assert (status["n_ctx"], status["n_slots"], status["state"]) == (2048, 4, "ready")
    (rank,) = status["plan"]
    assert rank["device"].startswith("cpu") and rank["cache_bytes"] > 0
    engine = status["engine"]
    assert {"transports", "ranks", "slots", "prefix", "n_reduces", "native_s"} <= set(engine)
    assert [slot["state"] for slot in engine["slots"]] == ["free"] * 4 and engine["prefix"]["is_on"]


def test_after_a_restart_a_shared_beginning_is_read_from_its_file(tmp_path: Path) -> None:
    path = write_forced(tmp_path / "m.gguf", "fine").path
    shared = [30 + i % 60 for i in range(300)]

    def n_cached(*options: Any) -> list[int]:
        with ServerProcess(path, "--ctx", 512, "--parallel", 1, "--threads", 1, *options) as server:
            bodies = [{"prompt": [*shared, 100 + i, 20], "max_tokens": 1} for i in range(4)]
            replies = [server.post(COMPLETIONS, body).json for body in bodies]
        return [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]

    folder = ("--prefix-cache-dir", tmp_path / "prefixes")
    assert n_cached(*folder)[0] == 0
    assert n_cached(*folder)[0] == len(shared)
    assert n_cached(*folder, "--no-prefix-cache") == [0] * 4
