"""Mistakes end with status 2 and one line that names where the mistake is, before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call, spawn
from refusals import is_listed

RUN = ("run", "{model}", "hi")
LOGITS = ("eval", "logits", "{model}", "--out", "{folder}/l.npy")
COMMAND_LINE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("runn",), "no command 'runn'; did you mean run?"),
    (("eval",), "group of commands: eval logits"),
    ((*RUN, "--ctz", "5"), "no option --ctz; did you mean --ctx?"),
    ((*RUN, "--ct", "512"), "no option --ct;"),
    ((*RUN, "--n-gen", "5"), "--n-gen is an option of bench and not of run"),
    ((*RUN, "there"), "'there' is one argument too many"),
    ((*RUN, "--ctx"), "argument --ctx: expected one argument"),
    (("run", "--temp", "0"), "MODEL is missing"),
    (("run", "{folder}/none.gguf", "hi"), "MODEL: no model file"),
    (("run", "{folder}", "hi"), "is a folder"),
    (("run", "{folder}/text.gguf", "hi"), "text.gguf: "),
    (("run", "{alien}", "hi"), "architecture 'alien'"),
    (("run", "{lacking}", "hi"), "output_norm.weight is missing"),
    ((*RUN, "--ctx", "abc"), "--ctx is 'abc': a whole number is needed, at least 64"),
    ((*RUN, "--ctx", "63"), "--ctx is '63': a whole number is needed, at least 64"),
    ((*RUN, "--temp", "3"), "--temp: temperature is 3.0; a number from 0 to 2"),
    ((*RUN, "--top-p", "nan"), "--top-p: top_p is nan"),
    ((*RUN, "--stop", ""), "--stop: stop holds an empty string"),
    ((*RUN, "--logit-bias", "five=1"), "a token id and a number are needed"),
    ((*RUN, "--grammar", "none.gbnf"), "none.gbnf cannot be read: No such file"),
    ((*RUN, "--json-schema", "[1"), "json_schema is not JSON"),
    ((*RUN, "--regex", "(?=a)"), "--regex: regex: "),
    ((*RUN, "--regex", "(?=a)"), "look-around"),
    ((*RUN, "--logit-bias", "99999=1"), "token id 99999 is outside of the vocabulary of 320"),
    ((*RUN, "--cache-type-k", "q3"), "one of f32, f16, bf16, q8_0, q4_0 is needed"),
    ((*RUN, "--device", "cuda:77"), "--device: no device 'cuda:77'"),
    ((*RUN, "--raw", "--system", "x"), "--system: with --raw there is no chat"),
    ((*RUN, "--raw", "--chat-template", "{folder}/text.gguf"), "exclude each other"),
    ((*RUN, "--chat-template", "{folder}/none.jinja"), "No such file"),
    ((*RUN, "--chat-template", "{folder}/broken.jinja"), "syntax error: line 1"),
    (("run", "{model}", "x" * 5000), "at most 4095 fit"),
    (("run", "{model}", "x" * 100, "--ctx", "64"), "at most 63 fit"),
    (("run", "{model}", ""), "the prompt is empty"),
    ((*RUN, "--config", "{folder}/none.json"), "none.json: No such file"),
    (LOGITS, "give either --tokens or --text"),
    ((*LOGITS, "--tokens", "1", "--text", "a"), "give either --tokens or --text"),
    ((*LOGITS, "--tokens", "1,a"), "whole numbers with commas between them are needed"),
    ((*LOGITS, "--tokens", "1,320"), "token id 320 is outside of the vocabulary of 320"),
    ((*LOGITS, "--tokens", "1,2", "--chunk", "600"), "--chunk is 600; with --batch 512"),
    ((*LOGITS, "--text", "x" * 5000), "do not fit a context of 4096"),
    (("eval", "logits", "{model}", "--tokens", "1"), "--out is missing"),
    (("eval", "logits", "{model}", "--tokens", "1", "--out", "{folder}/none/l.npy"), "no file can be written there"),
    (("bench", "{model}", "-p", "64,5000"), "-p: a prompt of 5000 tokens does not fit the model's context of 4096"),
    (("bench", "{model}", "-p", "65", "--ctx", "64"), "does not fit --ctx 64"),
    (("bench", "{model}", "-n", "4090", "--parallel", "1,4"), "-n: the longest decode test takes 4110 tokens"),
    (("bench", "{model}", "--repeat", "0"), "a whole number is needed, at least 1"),
    (("inspect", "{folder}/text.gguf"), "text.gguf: "),
)  # fmt: skip


@pytest.fixture
def places(tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Paths for the tables; reading a weight is an error that no refusal looks like."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pyggml.engine.weights.Weights.__init__", fail)
    (tmp_path / "text.gguf").write_text("this is no model")
    (tmp_path / "broken.jinja").write_text("{% if %}")
    alien = tmp_path / "alien.gguf"
    alien.write_bytes(tiny("llama").read_bytes().replace(b"llama", b"alien"))
    lacking = tiny("llama", omit=("output_norm.weight",))
    return {
        "model": str(tiny("llama")),
        "folder": str(tmp_path),
        "alien": str(alien),
        "lacking": str(lacking),
    }


@pytest.mark.parametrize(("arguments", "expected"), COMMAND_LINE, ids=lambda value: " ".join(value)[:60])
def test_command_line(
    arguments: tuple[str, ...], expected: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, *(argument.format(**places) for argument in arguments))
    assert (result.status, result.out) == (2, "")
    assert expected in result.err
    assert result.err.count("\n") == 1
    assert is_listed(result.err), "docs/troubleshooting.md does not have it"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("CTX", "abc", "PYGGML_CTX is 'abc': a whole number is needed"),
        ("TEMPERATURE", "hot", "PYGGML_TEMPERATURE is 'hot': a number is needed"),
        ("MIN_P", "2", "PYGGML_MIN_P: min_p is 2.0"),
        ("RAW", "perhaps", "PYGGML_RAW is 'perhaps': true or false is needed"),
        ("CACHE_TYPE_V", "f64", "PYGGML_CACHE_TYPE_V is 'f64': one of"),
        ("CONFIG", "none.json", "none.json: No such file"),
        ("DEVICE", "cuda:77", "PYGGML_DEVICE: no device 'cuda:77'"),
    ],
)
def test_environment(
    name: str, value: str, expected: str, places: dict[str, str], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(f"PYGGML_{name}", value)
    result = call(capsys, "run", places["model"], "hi")
    assert result.status == 2
    assert expected in result.err
    assert result.err.count("\n") == 1
    assert is_listed(result.err), "docs/troubleshooting.md does not have it"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"ctx": "abc"}, "c.json: ctx is 'abc': a whole number is needed"),
        ({"ctx": 64.5}, "c.json: ctx is '64.5': a whole number is needed"),
        ({"ctx": True}, "c.json: ctx holds 'true'"),
        ({"ctx": [1, 2]}, "c.json: ctx holds '[1, 2]'"),
        ({"raw": "yes"}, "c.json: raw is '\"yes\"': true or false is needed"),
        ({"temperature": 3}, "c.json: temperature: temperature is 3.0"),
        ({"ctz": 5}, "c.json: ctz: there is no such option; did you mean ctx?"),
        ({"max_tokens": 5}, "did you mean max-tokens?"),
        ({"config": "d.json"}, "c.json: config: there is no such option"),
        ({"stop": [""]}, "c.json: stop: stop holds an empty string"),
        ({"stop": [{}]}, "c.json: stop holds '{}'"),
        ({"device": "cuda:77"}, "c.json: device: no device 'cuda:77'"),
        ([1], "an object is needed"),
        ("{", "c.json: line 1, column 2"),
        ('{ ,}', "c.json: line 1, column 3"),
        ('{"stop": [,]}', "c.json: line 1, column 11"),
        ('{"stop": ["a",,]}', "c.json: line 1, column 16"),
        ('{"ctx": 64 /* no end', "c.json: line 1, column 12"),
        ('{"ctx": NaN}', "NaN is no JSON number"),
        ('{"ctx": 1, "ctx": 2}', "the key 'ctx' stands twice"),
        ("[" * 200_000, "nested too deep"),
        (b'{"device": "\xff"}', "the file is not UTF-8 (byte 12)"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_option_file(
    content: Any, expected: str, places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(places["folder"]) / "c.json"
    text = content if isinstance(content, (str, bytes)) else json.dumps(content)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    result = call(capsys, "run", places["model"], "hi", "--config", path)
    assert result.status == 2
    assert expected in result.err
    assert result.err.count("\n") == 1
    assert is_listed(result.err), "docs/troubleshooting.md does not have it"


def test_an_unexpected_error_is_one_line_and_status_1(
    places: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "run", places["model"], "hi", "--device", "cpu")
    assert result.status == 1
    assert result.err == "pyggml run: unexpected AssertionError: weights were read (--verbose shows where)\n"


@pytest.mark.parametrize("how", ["--verbose", "PYGGML_VERBOSE"])
def test_the_traceback_comes_when_asked_for(
    how: str, places: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "PYGGML_VERBOSE":
        monkeypatch.setenv(how, "1")
    more = ["--verbose"] if how == "--verbose" else []
    result = call(capsys, "run", places["model"], "hi", "--device", "cpu", *more)
    assert result.status == 1
    assert "Traceback" in result.err


def test_the_process_exits_with_the_status(tmp_path: Path) -> None:
    ended = spawn("run", tmp_path / "none.gguf", "hi")
    assert ended.returncode == 2
    assert ended.stderr.startswith("pyggml run: MODEL: no model file")
