"""Calls of tools and reasoning over HTTP: apart from the content, whole and as they stream, on both APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forced import write_forced
from server_process import Reply, ServerProcess
from tool_models import CALL, FUNCTION, TOOL

FLAT_TOOL = {"type": "function", **FUNCTION}


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(smollm2, "--ctx", 1024) as server:
        yield server


def calls_of(reply: Reply) -> list[dict[str, Any]]:
    assert reply.status == 200, reply.body
    calls: list[dict[str, Any]] = reply.json["choices"][0]["message"]["tool_calls"]
    return calls


def test_a_call_is_apart_from_the_content(caller: ServerProcess) -> None:
    reply = caller.chat(tools=[TOOL])
    (call,) = calls_of(reply)
    (choice,) = reply.json["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert (call["type"], call["function"]["name"]) == ("function", "weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_another_familys_calls_go_the_same_way(tmp_path: Path) -> None:
    mistral = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}\n{% endfor %}#{# [TOOL_CALLS] #}"
    (tmp_path / "mistral.jinja").write_text(mistral)
    answer = '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}}]'
    model = write_forced(tmp_path / "mistral.gguf", answer).path
    options = ("--ctx", 1024, "--threads", 1, "--chat-template", tmp_path / "mistral.jinja")
    with ServerProcess(model, *options) as server:
        reply = server.chat("QQ", tools=[TOOL])
        (call,) = calls_of(reply)
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
        asked = {"role": "user", "content": "QQ"}
        told = {"role": "tool", "tool_call_id": call["id"], "content": "Rain"}
        messages = [asked, reply.json["choices"][0]["message"], told]
        more = server.post("/v1/chat/completions", {"messages": messages, "tools": [TOOL], "temperature": 0})
        assert more.json["usage"]["prompt_tokens"] > reply.json["usage"]["total_tokens"]


def test_arguments_stream_in_pieces(caller: ServerProcess) -> None:
    events = caller.chat(tools=[TOOL], stream=True).events
    pieces = [c for e in events for choice in e["choices"] for c in choice["delta"].get("tool_calls", ())]
    assert pieces[0]["id"] and pieces[0]["function"]["name"] == "weather" and pieces[0]["type"] == "function"
    assert len(pieces) > 2 and all("id" not in piece for piece in pieces[1:])
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"city": "Oslo"}
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any(choice["delta"].get("content") for e in events for choice in e["choices"])


def test_without_tools_a_calls_text_is_content(caller: ServerProcess) -> None:
    for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        (choice,) = caller.chat(**fields).json["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == (CALL, "stop")


def test_a_tools_answer_goes_on_in_the_conversation(caller: ServerProcess) -> None:
    reply = caller.chat(tools=[TOOL])
    said = reply.json["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "Rain, 4 degrees"}
    messages = [{"role": "user", "content": "Say it."}, said, result]
    more = caller.post("/v1/chat/completions", {"messages": messages, "tools": [TOOL], "temperature": 0})
    assert more.json["usage"]["prompt_tokens"] > reply.json["usage"]["total_tokens"]


def test_responses_have_calls_as_items(caller: ServerProcess) -> None:
    response = caller.post("/v1/responses", {"input": "QQ", "tools": [FLAT_TOOL], "temperature": 0}).json
    (item,) = response["output"]
    assert (item["type"], item["name"], item["status"]) == ("function_call", "weather", "completed")
    assert json.loads(item["arguments"]) == {"city": "Oslo"}
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "Rain"}
    more = {"input": [output], "tools": [FLAT_TOOL], "temperature": 0, "previous_response_id": response["id"]}
    assert caller.post("/v1/responses", more).json["usage"]["input_tokens"] > response["usage"]["total_tokens"]


def test_responses_stream_arguments(caller: ServerProcess) -> None:
    body = {"input": "QQ", "tools": [FLAT_TOOL], "temperature": 0, "stream": True}
    lines = caller.post("/v1/responses", body).body.decode().splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert json.loads("".join(deltas)) == json.loads(done["arguments"]) == {"city": "Oslo"}


def test_reasoning_is_apart_from_the_content(thinker: ServerProcess) -> None:
    reply = thinker.chat("QQ")
    message = reply.json["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("I wonder.", "Fine")
    assert 0 < reply.json["usage"]["completion_tokens_details"]["reasoning_tokens"]


def test_reasoning_streams_before_the_content(thinker: ServerProcess) -> None:
    deltas = [c["delta"] for e in thinker.chat("QQ", stream=True).events for c in e["choices"]]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "I wonder."
    assert "".join(d.get("content", "") for d in deltas) == "Fine"


def test_responses_have_reasoning_as_an_item(thinker: ServerProcess) -> None:
    response = thinker.post("/v1/responses", {"input": "QQ", "temperature": 0}).json
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "I wonder."


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_the_template_is_told_not_to_think(thinker: ServerProcess, fields: dict[str, Any]) -> None:
    plain, told = (thinker.chat("QQ", max_tokens=1, **f).json["usage"]["prompt_tokens"] for f in ({}, fields))
    assert told > plain


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_demanded_call_comes(real: ServerProcess, choice: Any) -> None:
    (call,) = calls_of(real.chat("What is the weather in Oslo?", tools=[TOOL], tool_choice=choice, max_tokens=100,
                                 parallel_tool_calls=False))  # fmt: skip
    assert call["function"]["name"] == "weather"
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_tools_and_a_schema_give_a_call_or_the_schema(real: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema | {"additionalProperties": False}}}
    for text in ("What is the weather in Oslo?", "Are you well? Answer in JSON."):
        fields = {"tools": [TOOL], "response_format": form, "parallel_tool_calls": False, "max_tokens": 100}
        (choice,) = real.chat(text, **fields).json["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "tool_calls":
            assert all(list(json.loads(c["function"]["arguments"])) == ["city"] for c in message["tool_calls"])
        else:
            assert choice["finish_reason"] == "stop" and set(json.loads(message["content"])) == {"ok"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "other"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [TOOL, TOOL]}, "weather"),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "xml"),
        ({"response_format": {"type": "json_schema"}}, "schema"),
        ({"json_schema": {"type": "object", "not": {}}}, "not"),
        ({"json_schema": {"$ref": "http://127.0.0.1:9/x.json"}}, "$ref"),
        ({"grammar": "root ::= ("}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {"type": "object"}}, "json_schema"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_by_name(caller: ServerProcess, fields: dict[str, Any], named: str) -> None:
    reply = caller.chat(**fields)
    assert reply.status == 400 and named in reply.json["error"]["message"]


def test_llama_servers_own_fields_for_forms_work(real: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"]}
    for fields in ({"json_schema": schema}, {"response_format": {"type": "json_object", "schema": schema}}):
        content = real.chat("Give a number.", max_tokens=60, **fields).json["choices"][0]["message"]["content"]
        assert "n" in json.loads(content)
    reply = real.chat("Give a word.", grammar='root ::= "yes" | "no"')
    assert reply.json["choices"][0]["message"]["content"] in ("yes", "no")
