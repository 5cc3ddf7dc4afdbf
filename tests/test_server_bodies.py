"""Bodies that are broken, odd or too large: a JSON error each, and the server answers the next request."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from forced import write_forced
from refusals import is_listed
from server_process import HANG_S, Reply, ServerProcess

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MIB = 2**20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_forced(tmp_path_factory.mktemp("serve") / "m.gguf", "Fine.").path
    with ServerProcess(model, "--ctx", 64, "--max-body", 2) as server:
        yield server


@pytest.fixture
def server(running: ServerProcess) -> Iterator[ServerProcess]:
    """The server, which must answer a plain request afterwards."""
    yield running
    reply = running.post(COMPLETIONS, {"prompt": "WHY", "max_tokens": 2, "temperature": 0})
    assert reply.json["choices"][0]["text"] == "Fi"


def is_told(reply: Reply) -> bool:
    """Whether the body is OpenAI's error object, with words that docs/troubleshooting.md has."""
    error = reply.json["error"]
    return set(error) == {"message", "type", "param", "code"} and is_listed(error["message"])


def message(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "WHY"} | fields]}).encode()


BROKEN = {
    "cut off": b'{"model":"m","messages":[',
    "empty": b"",
    "a list": b'["a"]',
    "a string": b'"a"',
    "null": b"null",
    "a byte that is no UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "half a surrogate pair": b'{"messages":[{"role":"user","content":"\\ud83d"}]}',
    "NaN": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "deep": b"[" * 200_000,
    "deep in a field": b'{"messages":' + b"[" * 200_000,
    "deep in an unknown field": b'{"unknown":' + b"[" * 200_000,
    "a seed of 5000 digits": b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5000 + b"}",
    "messages as a text": b'{"messages":"x"}',
    "no messages": b"{}",
    "an empty list of messages": b'{"messages":[]}',
    "no role": b'{"messages":[{"content":"x"}]}',
    "an unknown role": message(role="robot"),
    "content is a number": message(content=5),
    "content of an unknown part": message(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_body_is_400(server: ServerProcess, name: str) -> None:
    reply = server.post(CHAT, BROKEN[name])
    assert reply.status == 400 and is_told(reply)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "nonsense"])
def test_the_content_type_does_not_matter(server: ServerProcess, content_type: str) -> None:
    assert server.post(CHAT, message(), Content_Type=content_type).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", CHAT, 405), ("DELETE", "/v1/models", 405), ("GET", "/nothing", 404), ("POST", "/v1/nothing", 404)],
)
def test_wrong_paths_and_methods_are_told(server: ServerProcess, method: str, path: str, status: int) -> None:
    reply = server.request(method, path)
    assert reply.status == status and is_told(reply)


def test_a_long_prompt_below_the_limit_is_read(server: ServerProcess) -> None:
    reply = server.post("/tokenize", {"content": "x" * int(1.2 * MIB)})
    assert reply.status == 200


def test_a_body_above_the_limit_is_413(server: ServerProcess) -> None:
    reply = server.post("/tokenize", {"content": "x" * (3 * MIB)})
    assert reply.status == 413 and is_told(reply)


def test_a_body_without_a_length_has_the_same_limit(server: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANG_S)
    chunks = [b'{"content": "', *[b"x" * MIB] * 3, b'"}']
    connection.request("POST", "/tokenize", iter(chunks), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
    assert connection.getresponse().status == 413
    connection.close()


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], [""], [1, "a"], [10**9], [-1], 5, None, {"a": 1}, ["a"] * 3000], ids=repr
)
def test_prompts_without_sense_are_400(server: ServerProcess, prompt: Any) -> None:
    reply = server.post(COMPLETIONS, {"prompt": prompt})
    assert reply.status == 400 and is_told(reply)


NULLS = (
    "temperature", "top_p", "max_tokens", "stop", "n", "seed", "logit_bias", "stream", "tools", "response_format",
    "logprobs", "stream_options", "presence_penalty", "min_p", "user", "tool_choice",
)  # fmt: skip


@pytest.mark.parametrize("name", NULLS)
def test_null_is_as_if_absent(server: ServerProcess, name: str) -> None:
    assert server.chat(**{"seed": 1, name: None, "max_tokens": None if name == "max_tokens" else 3}).status == 200


@pytest.mark.parametrize(("n", "status"), [(62, 200), (63, 200), (64, 400), (65, 400), (6500, 400)])
def test_a_prompt_must_leave_room_for_a_token(server: ServerProcess, n: int, status: int) -> None:
    reply = server.post(COMPLETIONS, {"prompt": [5] * n, "max_tokens": 1})
    assert reply.status == status
    if status == 400:
        assert str(n) in reply.json["error"]["message"] and "64" in reply.json["error"]["message"]
        assert reply.json["error"]["code"] == "context_length_exceeded"


def test_an_answer_ends_where_the_context_does(server: ServerProcess) -> None:
    reply = server.post(COMPLETIONS, {"prompt": [5] * 32, "max_tokens": 100, "ignore_eos": True}).json
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 32


def test_max_completion_tokens_is_max_tokens(server: ServerProcess) -> None:
    assert server.chat(max_completion_tokens=3).json["usage"]["completion_tokens"] == 3


def test_minus_one_token_is_no_limit(server: ServerProcess) -> None:
    assert server.chat(max_tokens=-1).json["choices"][0]["message"]["content"] == "Fine."


WRONG = {
    "max_tokens": (-2, 1.5, "5", True), "temperature": (-1, 3, "1"), "n": (0, 129, 1.5), "top_p": (-0.1, 1.1),
    "stop": ([""], "", [1], 5), "logit_bias": ({"x": 1}, {"1": 101}, {"99999999": 1}, 5), "top_logprobs": (21,),
    "seed": (1.5, "x"), "stream": ("yes",), "messages": (None,), "logprobs": (3,),
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_400_and_named(server: ServerProcess, name: str, value: Any) -> None:
    reply = server.chat(**{"logprobs": True, name: value})
    assert reply.status == 400 and is_told(reply)
    assert name in reply.json["error"]["message"] or name == reply.json["error"]["param"]


REFUSED = {
    "mirostat": 2, "typical_p": 0.9, "guided_json": {}, "repetition_penalty": 1.1, "audio": {"voice": "x"},
    "functions": [{"name": "f"}], "modalities": ["text", "audio"], "prediction": {},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_fields_that_would_change_the_answer_are_refused(server: ServerProcess, name: str) -> None:
    reply = server.chat(**{name: REFUSED[name]})
    assert (reply.status, reply.json["error"]["param"]) == (400, name)
    assert reply.json["error"]["code"] == "unsupported_parameter"


def test_what_is_switched_off_is_not_refused(server: ServerProcess) -> None:
    off = {"mirostat": 0, "typical_p": 1.0, "repetition_penalty": 1.0, "modalities": ["text"], "stop_token_ids": []}
    assert server.chat(max_tokens=1, **off).status == 200


def test_unknown_fields_are_ignored(server: ServerProcess) -> None:
    assert server.chat(max_tokens=1, never_heard_of={"a": [1]}).status == 200


def test_echo_without_tokens_scores_the_prompt(server: ServerProcess) -> None:
    body = {"prompt": "Answer: Yes", "echo": True, "logprobs": 1, "max_tokens": 0}
    reply = server.post(COMPLETIONS, body).json
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("Answer: Yes", "length")
    assert reply["usage"]["completion_tokens"] == 0
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == "Answer: Yes" and logprobs["token_logprobs"][0] is None
    assert len({len(values) for values in logprobs.values()}) == 1


def test_no_tokens_are_no_text(server: ServerProcess) -> None:
    assert server.post(COMPLETIONS, {"prompt": "WHY", "max_tokens": 0}).json["choices"][0]["text"] == ""
