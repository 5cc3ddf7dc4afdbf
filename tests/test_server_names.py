"""What a server calls its model, what it says of it, and what a base model cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from forced import write_forced
from server_process import ServerProcess

KEY = b"tokenizer.chat_template"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model without a chat template, under any name."""
    path = write_forced(tmp_path_factory.mktemp("serve") / "base.gguf", "Fine.").path
    data = path.read_bytes()
    assert KEY in data
    path.write_bytes(data.replace(KEY, KEY[:-1] + b"_"))
    with ServerProcess(path, "--ctx", 256, "--threads", 1, "--any-model") as server:
        yield server


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_base_model_names_the_option_that_would_help(base: ServerProcess, path: str) -> None:
    reply = base.post(path, {"messages": [{"role": "user", "content": "Hi"}], "input": "Hi"})
    assert reply.status == 400
    assert "--chat-template FILE" in reply.json["error"]["message"]
    assert any("--chat-template FILE" in line for line in base.lines)


def test_a_base_model_continues_texts_under_any_name(base: ServerProcess) -> None:
    reply = base.post("/v1/completions", {"model": "gpt-4o", "prompt": "WHY", "temperature": 0})
    assert (reply.status, reply.json["model"], reply.json["choices"][0]["text"]) == (200, "base", "Fine.")


def test_probes_may_ask_for_the_head_alone(base: ServerProcess) -> None:
    reply = base.request("HEAD", "/health")
    assert (reply.status, reply.body) == (200, b"")


def test_models_say_what_they_can(base: ServerProcess) -> None:
    (model,) = base.get("/v1/models").json["data"]
    assert model["id"] == "base" and model["context_length"] == 256
    assert "completion" in model["capabilities"] and "chat" not in model["capabilities"]
    assert model["meta"]["n_vocab"] == 512


def test_a_given_template_makes_a_base_model_chat(base: ServerProcess, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}#")
    path = write_forced(tmp_path / "m.gguf", "Fine.").path
    path.write_bytes(path.read_bytes().replace(KEY, KEY[:-1] + b"_"))
    with ServerProcess(path, "--ctx", 256, "--threads", 1, "--chat-template", template) as server:
        reply = server.chat("XY").json
        assert reply["choices"][0]["message"]["content"] == "Fine."
        assert reply["usage"]["prompt_tokens"] == len("XY#")
        assert "chat" in server.get("/v1/models").json["data"][0]["capabilities"]
