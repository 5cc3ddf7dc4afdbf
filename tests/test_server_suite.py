"""The suite of an acceptance run, on one device, on two with cut layers, and on two with whole layers each.

What a model must know is asked of models whose output is known: the bag (its words are those of its context), chains
(each token has one next token); what the server must do, of SmolLM2 too.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forced import distinct_pieces, write_bag, write_chain, write_forced
from server_process import HANG_S, ServerProcess, stream_of
from tiny_vocab import IM_END, vocabulary

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MODES: dict[str, tuple[Any, ...]] = {
    "one device": ("--device", "cpu"),
    "cut layers": ("--device", "cpu,cpu", "--tp", 2),
    "whole layers": ("--device", "cpu,cpu", "--layer-split", 2),
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
RAIN = "RAIN!"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
# A prompt ends in "%" after a tool's answer, in "#" else; with thinking the answer begins after "<think>".
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% if m.tool_calls %}{{ m.tool_calls|tojson }}{% endif %}"
    "{% endfor %}{% if tools %}tools {{ tools|tojson }}{% endif %}"
    "{% if messages[-1].role == 'tool' %}%{% else %}#{% endif %}{# <tool_call> #}"
)
THINKING = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>%{% else %}#{% endif %}{# </think> #}"
)
Serve = Callable[..., ServerProcess]


@pytest.fixture(scope="module", params=MODES)
def serve(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Servers in one mode, by name; each is started once."""
    folder = tmp_path_factory.mktemp("suite")
    servers: dict[str, ServerProcess] = {}

    def server_of(name: str, write: Callable[[Path], Path], *options: Any) -> ServerProcess:
        if name not in servers:
            arguments = ("--threads", 1, *MODES[request.param], *options)
            servers[name] = ServerProcess(write(folder / f"{name}.gguf"), *arguments)
        return servers[name]

    yield server_of
    for server in servers.values():
        server.__exit__()


@pytest.fixture
def smol(serve: Serve, smollm2: Path) -> ServerProcess:
    return serve("smollm2", lambda path: smollm2, "--ctx", 1024)


@pytest.fixture
def bag(serve: Serve) -> ServerProcess:
    options = ("--ctx", 4096, "--cache-type-k", "f32", "--cache-type-v", "f32")
    return serve("bag", lambda path: write_bag(path, n_layer=2), *options)


@pytest.fixture
def loop(serve: Serve) -> ServerProcess:
    """A model that never ends."""
    text = "around and around it goes "
    return serve("loop", lambda path: write_forced(path, text, loops=True, n_layer=2).path, "--ctx", 2048)


def two_answers(path: Path, usual: str, after_percent: str) -> Path:
    """A model with one answer after a prompt that ends in "%", and another after any other."""
    first, second = distinct_pieces(usual), distinct_pieces(after_percent)
    vocab = vocabulary(512, [piece.encode() for piece in dict.fromkeys([*first, *second]) if len(piece.encode()) > 1])
    following: dict[int, int] = {}
    for pieces in (first, second):
        ids = [*map(vocab.id_of, pieces), IM_END]
        for token, after in zip(ids, ids[1:]):
            assert following.setdefault(token, after) == after, f"{vocab.tokens[token]!r} is in both answers"
    following[vocab.id_of("%")] = vocab.id_of(second[0])
    return write_chain(path, following, default=vocab.id_of(first[0]), vocab=vocab, n_layer=2)


def template(path: Path, text: str) -> tuple[str, Path]:
    path.write_text(text)
    return "--chat-template", path


def ask(server: ServerProcess, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    reply = server.post(CHAT, {"messages": messages, "temperature": 0} | fields)
    assert reply.status == 200, reply.body
    choice: dict[str, Any] = reply.json["choices"][0]
    return choice


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chosen(server: ServerProcess, messages: list[dict[str, Any]], letters: str) -> str:
    """Which of the letters the model says."""
    content: str = ask(server, messages, grammar=f"root ::= [{letters}]", max_tokens=1)["message"]["content"]
    return content


def test_01_an_answer_whole(smol: ServerProcess) -> None:
    reply = smol.chat("What is 2+2?", max_tokens=24).json
    assert reply["choices"][0]["message"]["content"]
    usage = reply["usage"]
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]


def test_02_a_stream_joins_to_the_whole_answer(smol: ServerProcess) -> None:
    smol.chat("What is 2+2?", max_tokens=24)  # both then take the prompt from the cache
    whole = smol.chat("What is 2+2?", max_tokens=24).json["choices"][0]["message"]["content"]
    events = smol.chat("What is 2+2?", max_tokens=24, stream=True).events
    assert "".join(c["delta"].get("content", "") for e in events for c in e["choices"]) == whole


def test_03_a_name_and_a_fact_are_recalled(bag: ServerProcess) -> None:
    messages = [user("My name is Z"), {"role": "assistant", "content": "well"}, user("I live in W")]
    messages += [{"role": "assistant", "content": "fine"}, user("who am i, and where?")]
    assert chosen(bag, messages, "YZ") == "Z"
    assert chosen(bag, messages, "VW") == "W"


def test_04_a_system_prompt_holds_over_many_turns(bag: ServerProcess) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "always say X"}]
    for _ in range(9):
        messages.append(user("and now?"))
        assert (letter := chosen(bag, messages, "QX")) == "X"
        messages.append({"role": "assistant", "content": letter.lower()})


def test_05_any_json_object(smol: ServerProcess) -> None:
    choice = ask(smol, [user("Say hello as JSON.")], response_format={"type": "json_object"}, max_tokens=60)
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


def test_06_a_strict_schema(smol: ServerProcess) -> None:
    schema = {
        "type": "object", "additionalProperties": False, "required": ["name", "age"],
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 150}},
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": schema}}
    person = json.loads(ask(smol, [user("Invent a person.")], response_format=form)["message"]["content"])
    assert set(person) == {"name", "age"} and isinstance(person["age"], int) and person["age"] <= 150


def test_07_a_tool_is_called_and_its_answer_used(serve: Serve, tmp_path: Path) -> None:
    options = ("--ctx", 1024, *template(tmp_path / "tools.jinja", TEMPLATE))
    server = serve("tools", lambda path: two_answers(path, CALL, RAIN), *options)
    messages = [user("Is it wet in Oslo?")]
    choice = ask(server, messages, tools=[TOOL])
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", {"city": "Oslo"})
    messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "rain"}]
    last = ask(server, messages, tools=[TOOL])
    assert (last["message"]["content"], last["finish_reason"]) == (RAIN, "stop")


def test_08_thinking_on_and_off(serve: Serve, tmp_path: Path) -> None:
    options = ("--ctx", 512, *template(tmp_path / "thinking.jinja", THINKING))
    server = serve("thinking", lambda path: two_answers(path, "<think>Hmm, so.</think>OK", "YES"), *options)
    on = ask(server, [user("QQ")])["message"]
    off = ask(server, [user("QQ")], chat_template_kwargs={"enable_thinking": False})["message"]
    assert (on["reasoning_content"], on["content"]) == ("Hmm, so.", "OK")
    assert off["content"] == "YES" and not off.get("reasoning_content")


def test_09_a_prompt_is_reused(loop: ServerProcess) -> None:
    body = {"prompt": [20 + i % 80 for i in range(700)], "max_tokens": 16, "temperature": 0}
    replies = [loop.post(COMPLETIONS, body) for _ in range(2)]
    assert [reply.status for reply in replies] == [200, 200], replies
    first, second = (reply.json for reply in replies)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert 600 < second["usage"]["prompt_tokens_details"]["cached_tokens"] < 700
    assert second["timings"]["prompt_n"] < first["timings"]["prompt_n"]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]


def test_10_a_later_request_joins_a_running_one(loop: ServerProcess) -> None:
    bodies = [{"prompt": text, "max_tokens": 512, "temperature": 0, "ignore_eos": True} for text in ("QQ", "ZZZZ")]
    alone = [loop.post(COMPLETIONS, body).json["choices"][0]["text"] for body in bodies]
    stream = stream_of(loop, COMPLETIONS, bodies[0])
    texts = [next(stream)[1]["choices"][0]["text"] for _ in range(20)]
    later: list[str] = []

    def join() -> None:
        later.append(loop.post(COMPLETIONS, bodies[1]).json["choices"][0]["text"])

    joining = threading.Thread(target=join)
    joining.start()
    texts += [event["choices"][0]["text"] for _, event in stream]
    joining.join(HANG_S)
    assert ["".join(texts), *later] == alone


def test_11_four_at_once_say_the_same(loop: ServerProcess) -> None:
    found: list[str] = []

    def one() -> None:
        found.append(loop.chat("QQ", max_tokens=200).json["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert len(found) == 4 and len(set(found)) == 1


def needle(server: ServerProcess, n_tokens: int) -> str:
    """Which letter the model knows of a prompt with one Z among so many others."""
    other, hidden = server.post("/tokenize", {"content": "aZ"}).json["tokens"]
    prompt = [other] * n_tokens
    prompt[n_tokens // 3] = hidden
    body = {"prompt": prompt, "grammar": "root ::= [YZ]", "max_tokens": 1, "temperature": 0}
    text: str = server.post(COMPLETIONS, body).json["choices"][0]["text"]
    return text


def test_12_a_needle_is_found(bag: ServerProcess) -> None:
    assert needle(bag, 3000) == "Z"


def test_12_a_needle_is_found_among_16_thousand_tokens(tmp_path: Path) -> None:
    path = write_bag(tmp_path / "long.gguf", n_ctx=20_000, scale=100.0)
    with ServerProcess(path, "--ctx", 17_000, "--parallel", 1, "--device", "cpu") as server:
        assert needle(server, 16_384) == "Z"


def test_13_a_stream_is_left_and_the_next_request_answered(loop: ServerProcess) -> None:
    stream = stream_of(loop, CHAT, {"messages": [user("QQ")], "max_tokens": 1500, "temperature": 0})
    next(stream)
    stream.close()
    assert loop.chat("QQ", max_tokens=5).json["usage"]["completion_tokens"] == 5
    status = loop.get("/status").json
    assert status["n_restarts"] == 0 and status["engine"]["state"] == "ready"


def test_14_mistakes_are_told_and_stops_kept_back(loop: ServerProcess) -> None:
    for wrong in ({"temperature": 3}, {"max_tokens": "x"}, {"stop": [""]}, {"model": "other"}):
        assert loop.chat("QQ", **wrong).status in (400, 404)
    (choice,) = loop.chat("QQ", stop=["it goes"], max_tokens=100).json["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("around and around ", "stop")
