"""A subset of Ollama's API with its own client: conversations, streams, tools, forms, vectors, models, errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from forced import write_forced
from server_process import Reply, ServerProcess
from tool_models import PARAMETERS, TOOL

ollama = pytest.importorskip("ollama", reason="the ollama client is not installed: pip install ollama")

SUM = [{"role": "user", "content": "What is 2+2?"}]
QQ = [{"role": "user", "content": "QQ"}]
GREEDY = {"temperature": 0, "num_predict": 30}
ClientOf = Callable[[ServerProcess], Any]
LETTERS = ["A", " B", " C", "\u2028", " P"]


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[ServerProcess]:
    with ServerProcess(smollm2, "--ctx", 1024, "--alias", "smol", "--api-key", "sk-test") as server:
        yield server


@pytest.fixture(scope="module")
def client(smol: ServerProcess) -> Iterator[Any]:
    with ollama.Client(host=smol.url, headers={"Authorization": "Bearer sk-test"}) as client:
        yield client


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model that says some letters and a line separator."""
    model = write_forced(tmp_path_factory.mktemp("serve") / "m.gguf", LETTERS).path
    with ServerProcess(model, "--ctx", 256, "--threads", 1, "--alias", "letters,ab:1b") as server:
        yield server


@pytest.fixture(scope="module")
def client_of() -> Iterator[Callable[[ServerProcess], Any]]:
    """A client of a server."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(ollama.Client(host=server.url))


def chat(server: ServerProcess, **fields: Any) -> Reply:
    return server.post("/api/chat", {"messages": QQ, "stream": False, "options": {"temperature": 0}} | fields)


def test_chat(client: Any) -> None:
    reply = client.chat("smol", SUM, options=GREEDY)
    assert "4" in reply.message.content and reply.message.role == "assistant"
    assert (reply.model, reply.done, reply.done_reason) == ("smol", True, "stop")


def test_a_stream_adds_up_to_the_whole_answer(client: Any) -> None:
    whole = client.chat("smol", SUM, options=GREEDY).message.content
    parts = list(client.chat("smol", SUM, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and len(parts) > 3


@pytest.mark.parametrize("is_streamed", [False, True])
def test_counts_and_nanoseconds_are_told_at_the_end(client: Any, is_streamed: bool) -> None:
    asked = {"model": "smol", "messages": SUM, "options": GREEDY | {"num_predict": 8}}
    last = list(client.chat(**asked, stream=True))[-1] if is_streamed else client.chat(**asked)
    assert (last.done_reason, last.eval_count) == ("length", 8) and last.prompt_eval_count > 10
    assert 10**6 < last.prompt_eval_duration < last.total_duration < 10**11
    assert 10**6 < last.eval_duration < last.total_duration and last.load_duration == 0


def test_generate_is_a_conversation_of_one_prompt(client: Any) -> None:
    told = client.generate("smol", "What is 2+2?", system="Be brief.", options=GREEDY)
    messages = [{"role": "system", "content": "Be brief."}, *SUM]
    said = client.chat("smol", messages, options=GREEDY)
    assert (told.response, told.prompt_eval_count) == (said.message.content, said.prompt_eval_count)


def test_raw_continues_the_prompt_as_it_is(client: Any) -> None:
    prompt = "The capital of France is"
    told = client.generate("smol", prompt, raw=True, options=GREEDY | {"num_predict": 2})
    assert (told.response, told.prompt_eval_count) == (" Paris.", 5)
    parts = client.generate("smol", prompt, raw=True, stream=True, options=GREEDY | {"num_predict": 2})
    assert "".join(part.response for part in parts) == " Paris."


@pytest.mark.parametrize("how", ["chat", "generate", "raw"])
def test_a_schema_holds(client: Any, how: str) -> None:
    asked: dict[str, Any] = {"model": "smol", "format": PARAMETERS, "options": GREEDY | {"num_predict": 60}}
    if how == "chat":
        text = client.chat(messages=SUM, **asked).message.content
    else:
        text = client.generate(prompt="A city as JSON:", raw=how == "raw", **asked).response
    assert list(json.loads(text)) == ["city"]


def test_json_is_an_object(client: Any) -> None:
    reply = client.chat("smol", SUM, format="json", options={"temperature": 0, "num_predict": 200})
    assert reply.message.content.lstrip().startswith("{")


def test_the_model_is_listed_and_shown(client: Any) -> None:
    (model,), (running,) = client.list().models, client.ps().models
    assert (model.model, model.details.family, model.details.quantization_level) == ("smol:latest", "llama", "Q4_1")
    assert (running.model, running.context_length, running.size_vram) == ("smol:latest", 1024, 0)
    assert model.size == running.size > 10**7 and model.digest == running.digest
    shown = client.show(model.model)
    assert shown.modelinfo["general.architecture"] == "llama" and shown.modelinfo["llama.context_length"] == 8192
    assert set(shown.capabilities) == {"completion", "tools"}
    assert "im_start" in shown.template and "num_ctx" in shown.parameters


def test_vectors(client: Any) -> None:
    several = client.embed("smol", ["one", "two"])
    assert [len(vector) for vector in several.embeddings] == [576, 576] and several.prompt_eval_count == 2
    assert client.embed("smol", "one").embeddings[0] == pytest.approx(several.embeddings[0], abs=1e-4)
    assert client.embeddings("smol", "two").embedding == pytest.approx(several.embeddings[1], abs=1e-4)
    assert client.embed("smol", []).embeddings == [] == client.embeddings("smol", "").embedding


def test_errors_are_the_clients_own(client: Any, smol: ServerProcess, client_of: ClientOf) -> None:
    for is_streamed in (False, True):
        with pytest.raises(ollama.ResponseError) as unknown:
            list(client.chat("other", SUM, stream=is_streamed))
        assert unknown.value.status_code == 404 and "other" in unknown.value.error
    with pytest.raises(ollama.ResponseError, match="401"):
        client_of(smol).list()
    with pytest.raises(ollama.ResponseError) as nothing:
        client.pull("smol")
    assert nothing.value.status_code == 404


def test_an_error_is_one_text(letters: ServerProcess) -> None:
    for reply in (chat(letters, model="other"), letters.get("/api/nothing"), letters.get("/api/chat")):
        assert list(reply.json) == ["error"] and isinstance(reply.json["error"], str) and reply.json["error"]


def test_lines_come_by_themselves(letters: ServerProcess) -> None:
    reply = letters.post("/api/chat", {"messages": QQ, "options": {"temperature": 0}})
    lines = [json.loads(line) for line in reply.body.decode().splitlines()]
    assert reply.headers["Content-Type"] == "application/x-ndjson"
    assert "".join(line["message"]["content"] for line in lines) == "".join(LETTERS)
    assert "done_reason" not in lines[0] and lines[-1]["done_reason"] == "stop" and not lines[-1]["message"]["content"]


@pytest.mark.parametrize("name", ["letters", "letters:latest", "ab:1b"])
def test_names_go_with_their_tags(letters: ServerProcess, name: str, client_of: ClientOf) -> None:
    assert chat(letters, model=name).json["model"] == name
    assert name in {model.model for model in client_of(letters).list().models} | {"letters"}


@pytest.mark.parametrize("name", ["letters:7b", "ab", "ab:latest"])
def test_other_tags_are_other_models(letters: ServerProcess, name: str) -> None:
    assert chat(letters, model=name).status == 404


def test_stops_end_an_answer(letters: ServerProcess) -> None:
    reply = chat(letters, options={"temperature": 0, "stop": [" C"]}).json
    assert (reply["message"]["content"], reply["done_reason"]) == ("A B", "stop")


def test_as_many_tokens_as_fit_is_a_number_below_0(letters: ServerProcess) -> None:
    for n in (-1, -2):
        reply = chat(letters, options={"temperature": 0, "num_predict": n}).json
        assert reply["message"]["content"] == "".join(LETTERS)


def test_logprobs_come_with_their_tokens(letters: ServerProcess, client_of: ClientOf) -> None:
    client = client_of(letters)
    asked: dict[str, Any] = {"options": {"temperature": 0, "num_predict": 3}, "logprobs": True, "top_logprobs": 2}
    whole = client.chat("letters", QQ, **asked).logprobs
    assert [entry.token for entry in whole] == LETTERS[:3] and len(whole[0].top_logprobs) == 2
    for parts in (
        client.chat("letters", QQ, stream=True, **asked),
        client.generate("letters", "QQ", stream=True, **asked),
        client.generate("letters", "QQ", raw=True, stream=True, **asked),
    ):
        assert [entry.token for part in parts for entry in part.logprobs or ()] == LETTERS[:3]


def test_nothing_asked_is_a_loaded_model(letters: ServerProcess, client_of: ClientOf) -> None:
    assert client_of(letters).generate("letters", keep_alive=-1).done_reason == "load"
    reply = letters.post("/api/chat", {"model": "letters", "messages": [], "keep_alive": "5m"}).json
    assert (reply["done"], reply["done_reason"], reply["message"]["content"]) == (True, "load", "")


def test_the_programs_first_questions_are_answered(letters: ServerProcess) -> None:
    assert letters.request("HEAD", "/").status == 200
    major, minor, _ = letters.get("/api/version").json["version"].split(".")
    assert (int(major), int(minor)) >= (0, 12)


def test_a_call_comes_whole(caller: ServerProcess, client_of: ClientOf) -> None:
    client = client_of(caller)
    reply = client.chat("call", QQ, tools=[TOOL], options={"temperature": 0})
    (call,) = reply.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Oslo"})
    assert (reply.message.content, reply.done_reason) == ("", "stop")
    parts = list(client.chat("call", QQ, tools=[TOOL], options={"temperature": 0}, stream=True))
    (streamed,) = [call for part in parts for call in part.message.tool_calls or ()]
    assert streamed.function.arguments == {"city": "Oslo"} and parts[-1].done and not parts[-1].message.tool_calls
    result = {"role": "tool", "tool_name": "weather", "content": "Rain, 4 degrees"}
    more = client.chat("call", [*QQ, reply.message, result], tools=[TOOL], options={"temperature": 0})
    assert more.prompt_eval_count > reply.prompt_eval_count + reply.eval_count


def test_functions_of_python_are_tools(caller: ServerProcess, client_of: ClientOf) -> None:
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: its name
        """
        return city

    reply = client_of(caller).chat("call", QQ, tools=[weather], options={"temperature": 0})
    assert weather(**reply.message.tool_calls[0].function.arguments) == "Oslo"


@pytest.mark.parametrize(
    ("think", "thought"), [(None, "I wonder."), (True, "I wonder."), ("low", "I wonder."), (False, None)]
)
def test_thinking_is_apart_unless_it_is_switched_off(
    thinker: ServerProcess, client_of: ClientOf, think: bool | str | None, thought: str | None
) -> None:
    client = client_of(thinker)
    message = client.chat("think", QQ, think=think, options={"temperature": 0}).message
    assert (message.thinking, message.content) == (thought, "Fine")
    parts = list(client.generate("think", "QQ", think=think, options={"temperature": 0}, stream=True))
    assert "".join(part.thinking or "" for part in parts) == (thought or "")
    assert "".join(part.response for part in parts) == "Fine"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "more context than there is": ("chat", {"options": {"num_ctx": 257}}, "--ctx 257"),
    "images": ("chat", {"messages": [{"role": "user", "content": "x", "images": ["AA=="]}]}, "images"),
    "images of a prompt": ("generate", {"images": ["AA=="]}, "images"),
    "a sampler that is not there": ("chat", {"options": {"mirostat": 1}}, "mirostat"),
    "a template": ("generate", {"template": "{{ .Prompt }}"}, "template"),
    "a text after the answer": ("generate", {"suffix": "x"}, "suffix"),
    "an old context": ("generate", {"context": [1, 2]}, "context"),
    "raw with a system prompt": ("generate", {"raw": True, "system": "x"}, "system"),
    "a model that does not think": ("chat", {"think": True}, "think"),
    "a beginning of the answer": ("chat", {"messages": [*QQ, {"role": "assistant", "content": "B"}]}, "assistant"),
    "a temperature": ("chat", {"options": {"temperature": 9}}, "temperature"),
    "an unknown form": ("chat", {"format": "xml"}, "format"),
    "a schema that cannot be": ("chat", {"format": {"type": "object", "not": {}}}, "not"),
    "dimensions": ("embed", {"input": "x", "dimensions": 5}, "dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_is_refused_by_name(letters: ServerProcess, name: str) -> None:
    endpoint, fields, named = REFUSED[name]
    reply = letters.post(f"/api/{endpoint}", {"messages": QQ, "prompt": "QQ"} | fields)
    assert reply.status == 400 and named in reply.json["error"]


def test_what_changes_nothing_is_ignored(letters: ServerProcess) -> None:
    options = {"num_ctx": 256, "num_gpu": 99, "num_thread": 4, "mirostat": 0, "typical_p": 1.0, "temperature": 0}
    fields = {"options": options, "keep_alive": 0, "template": "", "context": [], "truncate": True}
    reply = letters.post("/api/generate", {"prompt": "QQ", "stream": False} | fields).json
    assert reply["response"] == "".join(LETTERS)
