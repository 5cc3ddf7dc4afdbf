"""Two clients that know nothing of this server, OpenAI's own and litellm, against SmolLM2."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess

openai = pytest.importorskip("openai", reason="the openai client is not installed: pip install openai")

MESSAGES: Any = [{"role": "user", "content": "What is 2+2?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(smollm2, "--ctx", 1024, "--alias", "smol", "--api-key", "sk-test") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="sk-test", max_retries=0) as client:
        yield client


def test_chat(client: Any) -> None:
    reply = client.chat.completions.create(model="smol", messages=MESSAGES, max_tokens=30, temperature=0)
    assert "4" in reply.choices[0].message.content
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model == "smol"


def test_a_stream_joins_to_the_whole_answer(client: Any) -> None:
    fields: Any = {"model": "smol", "messages": MESSAGES, "max_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**fields).choices[0].message.content
    stream = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens > 0


def test_a_schema_holds(client: Any) -> None:
    reply = client.chat.completions.create(
        model="smol", messages=MESSAGES, max_tokens=100, temperature=0, response_format=FORMAT
    )
    place = json.loads(reply.choices[0].message.content)
    assert set(place) == {"city", "people"} and isinstance(place["people"], int)


def test_any_json_object_is_one(client: Any) -> None:
    reply = client.chat.completions.create(
        model="smol", max_tokens=200, temperature=0, response_format={"type": "json_object"},
        messages=[{"role": "user", "content": "Say hello as JSON with one key."}],
    )  # fmt: skip
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)


def test_logprobs(client: Any) -> None:
    reply = client.chat.completions.create(
        model="smol", messages=MESSAGES, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == 4 and all(len(entry.top_logprobs) == 3 for entry in content)
    assert all(entry.logprob == entry.top_logprobs[0].logprob for entry in content)


TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather", "description": "The weather of a city",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
DEMANDED: Any = {
    "model": "smol", "messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "tools": [TOOL],
    "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 100, "temperature": 0,
}  # fmt: skip


def test_tools(client: Any) -> None:
    choice = client.chat.completions.create(**DEMANDED).choices[0]
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    assert list(json.loads(call.function.arguments)) == ["city"]
    result = {"role": "tool", "tool_call_id": call.id, "content": "Rain"}
    messages = [*DEMANDED["messages"], choice.message, result]
    more = client.chat.completions.create(model="smol", messages=messages, tools=[TOOL], max_tokens=4)
    assert more.usage.prompt_tokens > 0


def test_streamed_tools(client: Any) -> None:
    whole = client.chat.completions.create(**DEMANDED).choices[0].message.tool_calls[0].function.arguments
    with client.chat.completions.stream(**DEMANDED) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        final = stream.get_final_completion()
    assert [event.arguments for event in done] == [whole]
    assert final.choices[0].message.tool_calls[0].function.arguments == whole


def test_tools_of_responses(client: Any) -> None:
    tool = {"type": "function", **TOOL["function"], "strict": True}
    response = client.responses.create(
        model="smol", input="What is the weather in Oslo?", tools=[tool], tool_choice="required",
        parallel_tool_calls=False, max_output_tokens=100, temperature=0,
    )  # fmt: skip
    (call,) = response.output
    assert (call.type, call.name) == ("function_call", "weather")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "Rain"}
    more = client.responses.create(
        model="smol", input=[output], tools=[tool], previous_response_id=response.id, max_output_tokens=4
    )
    assert more.usage.input_tokens > response.usage.input_tokens


def test_completions(client: Any) -> None:
    reply = client.completions.create(
        model="smol", prompt="The capital of France is", max_tokens=2, temperature=0, logprobs=2, echo=True
    )
    assert reply.choices[0].text == "The capital of France is Paris."
    assert len(reply.choices[0].logprobs.tokens) == 7


def test_embeddings(client: Any) -> None:
    reply = client.embeddings.create(model="smol", input=["one", "two"])  # the client asks for base64
    assert [len(item.embedding) for item in reply.data] == [576, 576]


def test_responses(client: Any) -> None:
    fields: Any = {"model": "smol", "input": "What is 2+2?", "max_output_tokens": 30, "temperature": 0}
    response = client.responses.create(**fields)
    assert "4" in response.output_text
    assert client.responses.retrieve(response.id).output_text == response.output_text
    more = client.responses.create(**fields | {"input": "Are you sure?", "previous_response_id": response.id})
    assert more.usage.input_tokens > response.usage.input_tokens
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_streamed_responses(client: Any) -> None:
    fields: Any = {"model": "smol", "input": "What is 2+2?", "max_output_tokens": 30, "temperature": 0}
    with client.responses.stream(**fields) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text and "4" in final.output_text


def test_models(client: Any) -> None:
    (model,) = client.models.list().data
    assert model.id == "smol" and client.models.retrieve("smol").id == "smol"


def test_errors_are_the_clients_own(client: Any, server: ServerProcess) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="smol", messages=MESSAGES, temperature=3)
    assert "temperature" in str(refused.value)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def event_loops() -> list[asyncio.AbstractEventLoop]:
    return [thing for thing in gc.get_objects() if issubclass(type(thing), asyncio.AbstractEventLoop)]


@pytest.fixture(scope="module")
def litellm(server: ServerProcess) -> Iterator[Any]:
    """It leaves an event loop open, whose sockets would fail whichever test the garbage collector runs in."""
    before = {id(loop) for loop in event_loops()}
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for prices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("litellm", reason="litellm is not installed: pip install litellm")
    module.telemetry = False
    yield module
    for loop in event_loops():
        if id(loop) not in before and not loop.is_running():
            loop.close()


@pytest.fixture
def asked(server: ServerProcess) -> dict[str, Any]:
    return {
        "model": "openai/smol", "api_base": f"{server.url}/v1", "api_key": "sk-test", "messages": MESSAGES,
        "max_tokens": 30, "temperature": 0,
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_litellm_chat_and_stream(litellm: Any, asked: dict[str, Any]) -> None:
    whole = litellm.completion(**asked).choices[0].message.content
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
    assert "4" in whole and streamed == whole


@pytest.mark.parametrize("provider", ["anthropic", "ollama_chat", "ollama"])
@pytest.mark.filterwarnings("ignore")
def test_litellm_in_the_words_of_others(
    litellm: Any, server: ServerProcess, asked: dict[str, Any], provider: str
) -> None:
    asked |= {"model": f"{provider}/smol", "api_base": server.url}
    whole = litellm.completion(**asked)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True))
    assert "4" in whole.choices[0].message.content and streamed == whole.choices[0].message.content
    assert whole.usage.prompt_tokens > 30 and whole.choices[0].finish_reason == "stop"


@pytest.mark.filterwarnings("ignore")
def test_litellm_schema(litellm: Any, asked: dict[str, Any]) -> None:
    reply = litellm.completion(**asked | {"max_tokens": 100}, response_format=FORMAT)
    assert set(json.loads(reply.choices[0].message.content)) == {"city", "people"}


@pytest.mark.filterwarnings("ignore")
def test_litellm_tools(litellm: Any, asked: dict[str, Any]) -> None:
    demanded = {name: DEMANDED[name] for name in ("messages", "tools", "tool_choice", "parallel_tool_calls")}
    reply = litellm.completion(**asked | demanded | {"max_tokens": 100})
    (call,) = reply.choices[0].message.tool_calls
    assert call.function.name == "weather" and list(json.loads(call.function.arguments)) == ["city"]


@pytest.mark.filterwarnings("ignore")
def test_litellm_embeddings(litellm: Any, asked: dict[str, Any]) -> None:
    where = {name: asked[name] for name in ("model", "api_base", "api_key")}
    reply = litellm.embedding(**where, input=["one", "two"], encoding_format="float")
    assert [len(item["embedding"]) for item in reply.data] == [576, 576]
