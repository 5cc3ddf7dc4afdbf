"""/v1/chat/completions and /v1/completions on a model whose answer is known."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from forced import write_forced
from server_process import Reply, ServerProcess

ANSWER = "Blue, for the air scatters it 👍."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_forced(tmp_path_factory.mktemp("serve") / "sky.gguf", ANSWER).path
    with ServerProcess(model, "--ctx", 512, "--alias", "sky,blue") as server:
        yield server


def content(reply: Reply) -> str:
    assert reply.status == 200, reply.body
    text: str = reply.json["choices"][0]["message"]["content"]
    return text


def joined(reply: Reply) -> str:
    deltas = [choice["delta"] for event in reply.events for choice in event["choices"]]
    return "".join(delta.get("content", "") for delta in deltas)


def test_an_answer_is_the_models(server: ServerProcess) -> None:
    reply = server.chat()
    assert content(reply) == ANSWER
    assert reply.json["choices"][0]["finish_reason"] == "stop"


def test_usage_sums(server: ServerProcess) -> None:
    usage = server.chat(max_tokens=3).json["usage"]
    assert usage["completion_tokens"] == 3
    assert usage["prompt_tokens"] + 3 == usage["total_tokens"]


def test_a_stream_joins_to_the_same_text(server: ServerProcess) -> None:
    assert joined(server.chat(stream=True)) == ANSWER


@pytest.mark.parametrize(("name", "status"), [("sky", 200), ("blue", 200), (None, 200), ("gpt-4o", 404)])
def test_served_names(server: ServerProcess, name: str | None, status: int) -> None:
    reply = server.chat(model=name, max_tokens=1)
    assert reply.status == status
    if status == 404:
        assert "sky, blue" in reply.json["error"]["message"]
    else:
        assert reply.json["model"] == (name or "sky")


@pytest.mark.parametrize("options", [{"include_usage": True}, {"include_usage": False}, {}, None])
def test_usage_comes_in_one_last_chunk_and_only_when_asked_for(server: ServerProcess, options: Any) -> None:
    events = server.chat(stream=True, stream_options=options, max_tokens=2).events
    if options and options.get("include_usage"):
        assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 2
        assert all(event["usage"] is None for event in events[:-1])
    else:
        assert all("usage" not in event and event["choices"] for event in events)


def test_logprobs_have_chats_shape(server: ServerProcess) -> None:
    choice = server.chat(logprobs=True, top_logprobs=3, max_tokens=2).json["choices"][0]
    entries = choice["logprobs"]["content"]
    assert [set(entry) for entry in entries] == [{"token", "logprob", "bytes", "top_logprobs"}] * 2
    assert [len(entry["top_logprobs"]) for entry in entries] == [3, 3]


@pytest.mark.parametrize(
    "fields", [{"top_logprobs": 2}, {"logprobs": True, "top_logprobs": 21}, {"temperature": 3}, {"n": 0}]
)
def test_impossible_fields_are_refused_by_name(server: ServerProcess, fields: dict[str, Any]) -> None:
    reply = server.chat(**fields)
    assert reply.status == 400
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}
    assert list(fields)[-1] in reply.json["error"]["message"]


def test_completions_echo_the_prompt(server: ServerProcess) -> None:
    reply = server.post("/v1/completions", {"prompt": "Why?", "echo": True, "temperature": 0, "max_tokens": 3})
    assert reply.json["choices"][0]["text"] == "Why?" + ANSWER[:3]


def test_several_prompts_are_answered_in_their_order(server: ServerProcess) -> None:
    body = {"prompt": ["QQ", "ZZ"], "n": 2, "echo": True, "temperature": 0, "max_tokens": 1}
    choices = server.post("/v1/completions", body).json["choices"]
    assert [c["index"] for c in choices] == [0, 1, 2, 3]
    assert [c["text"] for c in choices] == ["QQB", "QQB", "ZZB", "ZZB"]
