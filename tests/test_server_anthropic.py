"""Anthropic's API with its own client: conversations, streams, tools, reasoning, refusals and errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forced import write_forced
from server_process import Reply, ServerProcess
from tool_models import PARAMETERS

anthropic = pytest.importorskip("anthropic", reason="the anthropic client is not installed: pip install anthropic")

MESSAGES = "/v1/messages"
ASKED: Any = {"model": "smol", "messages": [{"role": "user", "content": "What is 2+2?"}], "max_tokens": 30}
GREEDY: Any = {"extra_body": {"temperature": 0}}
TOOL: Any = {"name": "weather", "description": "The weather of a city", "input_schema": PARAMETERS}
WEATHER: Any = {
    "model": "smol", "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": [TOOL],
    "max_tokens": 100,
}  # fmt: skip


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(smollm2, "--ctx", 1024, "--alias", "smol", "--api-key", "sk-test") as server:
        yield server


@pytest.fixture(scope="module")
def client(smol: ServerProcess) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=smol.url, api_key="sk-test", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that says some letters."""
    model = write_forced(tmp_path_factory.mktemp("serve") / "m.gguf", ["A", " B", " C", " O", " P"]).path
    with ServerProcess(model, "--ctx", 512, "--threads", 1) as server:
        yield server


def ask(server: ServerProcess, content: Any = "QQ", **fields: Any) -> Reply:
    messages = [{"role": "user", "content": content}]
    return server.post(MESSAGES, {"messages": messages, "max_tokens": 100, "temperature": 0} | fields)


def events_of(reply: Reply) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their types."""
    events = []
    for text in reply.body.decode().strip().split("\n\n"):
        name, data = text.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def test_chat(client: Any) -> None:
    message = client.messages.create(**ASKED, **GREEDY)
    (block,) = message.content
    assert (block.type, message.role, message.model) == ("text", "assistant", "smol") and "4" in block.text
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens > 0 and message._request_id


def test_a_stream_adds_up_to_the_whole_message(client: Any) -> None:
    whole = client.messages.create(**ASKED, **GREEDY)
    with client.messages.stream(**ASKED, **GREEDY) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert "".join(texts) == final.content[0].text == whole.content[0].text and len(texts) > 2
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens


def test_the_client_lists_the_model(client: Any) -> None:
    (model,) = client.models.list()
    assert (model.id, model.type, client.models.retrieve("smol").id) == ("smol", "model", "smol")


def test_tokens_are_counted_as_they_are_used(client: Any) -> None:
    asked = {**WEATHER, "system": [{"type": "text", "text": "Be brief."}]}
    counted = client.messages.count_tokens(**{name: asked[name] for name in ("model", "messages", "tools", "system")})
    usage = client.messages.create(**asked | {"max_tokens": 1}).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_what_the_cache_had_is_told_apart(client: Any) -> None:
    asked = ASKED | {"system": "Count: " + " ".join(map(str, range(40)))}
    first, second = (client.messages.create(**asked).usage for _ in range(2))
    assert second.cache_read_input_tokens > 40 and second.input_tokens < first.input_tokens
    assert sum((second.input_tokens, second.cache_read_input_tokens)) == first.input_tokens


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_demanded_call_comes_and_its_result_goes_on(client: Any, choice: Any) -> None:
    demanded = {**WEATHER, "tool_choice": choice | {"disable_parallel_tool_use": True}}
    message = client.messages.create(**demanded, **GREEDY)
    (call,) = message.content
    assert (message.stop_reason, call.name, list(call.input)) == ("tool_use", "weather", ["city"])
    with client.messages.stream(**demanded, **GREEDY) as stream:
        assert stream.get_final_message().content[0].input == call.input
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "Rain"}]}
    said = {"role": "assistant", "content": message.content}
    more = [*WEATHER["messages"], said, {"role": "user", "content": [result]}]
    usage = client.messages.create(**WEATHER | {"messages": more, "max_tokens": 4}).usage
    assert usage.input_tokens + usage.cache_read_input_tokens > message.usage.input_tokens + 10


def test_a_schema_holds(client: Any) -> None:
    body = {"output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}}, "temperature": 0}
    message = client.messages.create(**ASKED | {"max_tokens": 60}, extra_body=body)
    assert list(json.loads(message.content[0].text)) == ["city"]


def test_errors_are_the_clients_own(client: Any, smol: ServerProcess) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**ASKED | {"model": "other"})
    assert unknown.value.body["type"] == "error" and unknown.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(**ASKED, extra_body={"temperature": 3})
    assert refused.value.body["error"]["type"] == "invalid_request_error" and "temperature" in str(refused.value)
    with anthropic.Anthropic(base_url=smol.url, api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(anthropic.AuthenticationError) as unasked:
            stranger.messages.create(**ASKED)
    assert unasked.value.body["error"]["type"] == "authentication_error"


def test_a_prompt_that_is_too_long_is_told_in_the_words_that_agents_look_for(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long.*1024"):
        client.messages.create(**ASKED | {"system": "word " * 2000})


def test_events_come_in_order(letters: ServerProcess) -> None:
    events = events_of(ask(letters, stream=True))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) == {"content_block_delta"}
    started = events[0]["message"]
    assert (started["content"], started["stop_reason"], started["usage"]["output_tokens"]) == ([], None, 0)
    assert "".join(event["delta"]["text"] for event in events[3:-3]) == "A B C O P"
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 6


ENDS: dict[str, tuple[dict[str, Any], str, str, str | None]] = {
    "by itself": ({}, "A B C O P", "end_turn", None),
    "a stop sequence": ({"stop_sequences": ["X", " O"]}, "A B C", "stop_sequence", " O"),
    "a stop sequence over two tokens": ({"stop_sequences": ["C O"]}, "A B ", "stop_sequence", "C O"),
    "as many tokens as allowed": ({"max_tokens": 2}, "A B", "max_tokens", None),
}


@pytest.mark.parametrize("name", ENDS)
def test_why_an_answer_ended_is_told(letters: ServerProcess, name: str) -> None:
    fields, text, reason, stop = ENDS[name]
    whole = ask(letters, **fields).json
    assert (whole["content"], whole["stop_reason"], whole["stop_sequence"]) == (
        [{"type": "text", "text": text}], reason, stop,
    )  # fmt: skip
    last = events_of(ask(letters, **fields, stream=True))[-2]
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": stop}


def test_a_call_streams_as_json_text(caller: ServerProcess) -> None:
    events = events_of(ask(caller, tools=[TOOL], stream=True))
    (start,) = [event for event in events if event["type"] == "content_block_start"]
    assert start["content_block"]["name"] == "weather" and start["content_block"]["input"] == {}
    pieces = [event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"]
    assert len(pieces) > 1 and json.loads("".join(pieces)) == {"city": "Oslo"}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL], "tool_choice": {"type": "none"}}], ids=["none given", "none"])
def test_without_tools_nothing_is_called(caller: ServerProcess, fields: dict[str, Any]) -> None:
    assert [block["type"] for block in ask(caller, **fields).json["content"]] == ["text"]


def test_a_call_is_there_whole_or_not_at_all(caller: ServerProcess) -> None:
    n = ask(caller, tools=[TOOL]).json["usage"]["output_tokens"]
    contents = [ask(caller, tools=[TOOL], max_tokens=k).json["content"] for k in range(n // 2, n)]
    calls = [block["input"] for content in contents for block in content if block["type"] == "tool_use"]
    assert all(call == {"city": "Oslo"} for call in calls)
    assert [] in contents


@pytest.mark.parametrize("thinking", [{"type": "enabled", "budget_tokens": 1024}, {"type": "adaptive"}])
def test_reasoning_is_a_block_of_its_own(thinker: ServerProcess, thinking: dict[str, Any]) -> None:
    whole = ask(thinker, thinking=thinking).json
    assert whole["content"] == [
        {"type": "thinking", "thinking": "I wonder.", "signature": ""}, {"type": "text", "text": "Fine"},
    ]  # fmt: skip
    assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    events = events_of(ask(thinker, thinking=thinking, stream=True))
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "I wonder."
    assert [delta["type"] for delta in deltas].count("signature_delta") == 1
    assert [event["index"] for event in events if event["type"] == "content_block_start"] == [0, 1]


@pytest.mark.parametrize("fields", [{}, {"thinking": {"type": "disabled"}}])
def test_reasoning_that_nobody_asked_for_is_left_out(thinker: ServerProcess, fields: dict[str, Any]) -> None:
    assert [block["type"] for block in ask(thinker, **fields).json["content"]] == ["text"]
    kinds = [e["content_block"]["type"] for e in events_of(ask(thinker, **fields, stream=True)) if "content_block" in e]
    assert kinds == ["text"]


def test_the_template_is_told_whether_to_think(thinker: ServerProcess) -> None:
    thinks, does_not = (
        thinker.post(f"{MESSAGES}/count_tokens", {"messages": [{"role": "user", "content": "QQ"}]} | fields).json
        for fields in ({"thinking": {"type": "adaptive"}}, {})
    )
    assert thinks["input_tokens"] < does_not["input_tokens"]


CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."},
        {"type": "redacted_thinking", "data": "x"},
    ]},
    {"role": "user", "content": [{"type": "text", "text": "Well?", "cache_control": {"type": "ephemeral"}}]},
]  # fmt: skip


def test_blocks_become_the_messages_that_the_template_knows(letters: ServerProcess) -> None:
    body = {"system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind"}], "messages": CONVERSATION}
    plain = [
        {"role": "system", "content": "Be\nkind"}, {"role": "user", "content": "One\nTwo"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}, {"role": "user", "content": "Well?"},
    ]  # fmt: skip
    assert (
        letters.post(f"{MESSAGES}/count_tokens", body).json["input_tokens"]
        == letters.post("/apply-template", {"messages": plain}).json["n_tokens"]
    )


@pytest.mark.parametrize("is_apart", [False, True])
def test_an_agents_billing_line_does_not_reach_the_model(letters: ServerProcess, is_apart: bool) -> None:
    line, text = "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a5145;", "You are kind."
    systems = ([line, text] if is_apart else [line + text], [text])
    counts = [
        letters.post(f"{MESSAGES}/count_tokens", {
            "messages": [{"role": "user", "content": "QQ"}],
            "system": [{"type": "text", "text": text} for text in texts],
        }).json["input_tokens"]
        for texts in systems
    ]  # fmt: skip
    assert counts[0] == counts[1]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an image": ({"content": [IMAGE]}, "image"),
    "an image in a result": (
        {"content": [{"type": "tool_result", "tool_use_id": "x", "content": [IMAGE]}]}, "content[0].content[0]",
    ),
    "a document": ({"content": [{"type": "document", "source": {}}]}, "document"),
    "a tool of the server": ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    "a container": ({"container": "x"}, "container"),
    "other servers": ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
    "a sampler that is not there": ({"mirostat": 2}, "mirostat"),
    "a tool that is not offered": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "other"),
    "a tool without a name": ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice"),
    "a call without tools": ({"tool_choice": {"type": "any"}}, "tool_choice is of type 'any'"),
    "an empty stop sequence": ({"stop_sequences": [""]}, "stop_sequences"),
    "an unknown kind of thinking": ({"thinking": {"type": "deep"}}, "thinking"),
    "a beginning of the answer": (
        {"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}]}, "assistant",
    ),
    "no messages": ({"messages": []}, "messages"),
    "a result of no call": ({"content": [{"type": "tool_result"}]}, "tool_use_id"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_by_name(letters: ServerProcess, name: str) -> None:
    fields, named = REFUSED[name]
    reply = ask(letters, **fields)
    assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (400, "error", "invalid_request_error")
    assert named in reply.json["error"]["message"]


def test_what_changes_nothing_is_ignored(letters: ServerProcess) -> None:
    fields = {"metadata": {"user_id": "x"}, "service_tier": "auto", "context_management": {"edits": []}}
    assert ask(letters, **fields, mcp_servers=[], tools=[], max_tokens=1).status == 200
