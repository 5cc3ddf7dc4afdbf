"""Mistakes end with status 2 and one line that names where the mistake is, before any weight is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call, spawn
from fake_hub import FakeHub
from refusals import is_listed

import pyggml as gg

RUN = ("run", "{model}", "hi")
LOGITS = ("eval", "logits", "{model}", "--out", "{folder}/l.npy")
COMMAND_LINE: tuple[tuple[tuple[str, ...], str], ...] = (
    (("runn",), "no command 'runn'; did you mean run?"),
    (("eval",), "group of commands: eval logits"),
    ((*RUN, "--ctz", "5"), "no option --ctz; did you mean --ctx?"),
    ((*RUN, "--ct", "512"), "no option --ct;"),
    ((*RUN, "--tp-peers", "a:1,b:1"), "no option --tp-peers; pyggml runs on one machine: --tp and --layer-split"),
    ((*RUN, "--tp-node-id=1"), "no option --tp-node-id; pyggml runs on one machine"),
    ((*RUN, "--nnodes", "2"), "no option --nnodes; pyggml runs on one machine"),
    ((*RUN, "--rpc", "host:1"), "no option --rpc; pyggml runs on one machine"),
    ((*RUN, "--list-gpus"), "no option --list-gpus; pyggml devices lists them"),
    (("devices", "--list-devices"), "no option --list-devices; pyggml devices lists them"),
    ((*RUN, "-ts", "3,1"), "no option -ts; did you mean --tensor-split?"),
    ((*RUN, "-ts=3,1"), "no option -ts; did you mean --tensor-split?"),
    ((*RUN, "-c", "4096"), "no option -c; did you mean --ctx?"),
    ((*RUN, "-ngl", "99"), "no option -ngl; a model lies whole on the devices that --device names"),
    ((*RUN, "-np", "4"), "no option -np; did you mean --parallel?"),
    ((*RUN, "-hf", "o/m"), "no option -hf; MODEL stands without a name"),
    (("run", "-m", "{model}"), "no option -m; MODEL stands without a name"),
    ((*RUN, "--tensor-parallel-size", "2"), "no option --tensor-parallel-size; did you mean --tp?"),
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
        ({"tp-peers": "a:1"}, "c.json: tp-peers: there is no such option; pyggml runs on one machine"),
        ({"tensor-parallel-size": 2}, "there is no such option; did you mean tp?"),
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


# With an address as MODEL: what is refused before that is asked.
TWO, FILE = ("--device", "cpu,cpu"), ("--file", "{folder}/text.txt")
PPL, KL = ("eval", "ppl", "MODEL"), ("eval", "kl", "MODEL")
UNASKED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("run", "MODEL", "hi", "--temp", "3"), "temperature is 3.0"),
    (("run", "MODEL", "hi", "--raw", "--system", "x"), "--system: with --raw there is no chat"),
    (("run", "MODEL", "hi", "--raw", "--chat-template", "{folder}/text.txt"), "exclude each other"),
    (("run", "MODEL", ""), "the prompt is empty"),
    (("run", "MODEL", "hi", *TWO, "--tp", "2", "--tensor-split", "a,b"), "shares are numbers"),
    (("run", "MODEL", "hi", "--reduce-dtype", "bf16"), "--reduce-dtype bf16 needs --tp"),
    (("run", "MODEL", "hi", *TWO), "lists 2 devices for 1 ranks"),
    (("serve", "MODEL", "--max-gap", "0"), "max-gap = 0.0; a number of milliseconds above 0"),
    (("serve", "MODEL", "--grace", "0"), "--grace is 0; a number of seconds above 0"),
    (("serve", "MODEL", "--dp", "2", "--device", "cpu"), "lists 1 device for --dp 2"),
    (("serve", "MODEL", "--dp", "2", "--tp", "9"), "--dp 2 --tp 9 need 18 GPUs and this machine shows 0"),
    (("serve", "MODEL", "--dp", "2", *TWO, "--reserve", "1,2,3"), "reserve = 1,2,3 has 3 numbers of MiB"),
    (("serve", "MODEL", "--dp", "2000", "--pin", "--device", ",".join(["cpu"] * 2000)), "--pin needs a processor"),
    (("bench", "MODEL", "--modes", "all", *TWO, "--tp", "2"), "--modes all chooses the modes itself"),
    (("bench", "MODEL", "--modes", "all", "--device", "cpu"), "--modes all compares two or more devices"),
    (("bench", "MODEL", "-p", "65", "--ctx", "64"), "does not fit --ctx 64"),
    (("bench", "MODEL", "-p", "8", "-n", "90", "--ctx", "64"), "-n: the longest decode test takes"),
    (("plan", "MODEL", "--dp", "2", "--device", "cpu"), "lists 1 device for --dp 2"),
    (("plan", "MODEL", *TWO, "--reserve", "1,2,3"), "reserve = 1,2,3 has 3 numbers of MiB"),
    (("plan", "MODEL", "--reserve", "1,2"), "there is 1 device for them (cpu)"),
    (("eval", "logits", "MODEL", "--out", "{folder}/l.npy"), "give either --tokens or --text"),
    (("eval", "logits", "MODEL", "--out", "{folder}/l.npy", "--tokens", ",".join("1" * 65), "--ctx", "64"),
     "--tokens: 65 tokens do not fit a context of 64"),
    ((*PPL, "--file", "{folder}/none.txt"), "none.txt: No such file"),
    ((*PPL, *FILE, "--chunk", "600"), "--chunk is 600"),
    (KL, "give either --base or --base-run"),
    ((*KL, "--base", "{folder}/text.txt"), "--base: "),
    ((*KL, "--base-run", ""), "--base-run needs a text to evaluate: give --file"),
    ((*KL, *FILE, "--base-run", "", "--floor", "{folder}/text.txt"), "--floor is a file beside another one"),
    ((*KL, *FILE, "--base-run", "--tp 9"), "--base-run: --tp 9 needs 9 GPUs and this machine shows 0"),
    ((*KL, *FILE, "--base-run", "--tp 2 --layer-split 2"), "--base-run: --tp and --layer-split exclude each other"),
)  # fmt: skip
# Of every command that knows where a model is to lie.
MISPLACED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--tp", "2", "--layer-split", "2"), "--tp and --layer-split exclude each other"),
    (("--tp", "9"), "--tp 9 needs 9 GPUs and this machine shows 0"),
    (("--layer-split", "9"), "--layer-split 9 needs 9 GPUs and this machine shows 0"),
    (("--tp", "17", "--device", ",".join(["cpu"] * 17)), "tp = 17; 1 to 16 devices are supported"),
    (("--tp", "3", *TWO), "lists 2 devices for 3 ranks"),
    (("--device", "cuda:77"), "--device: no device 'cuda:77'"),
    (("--tp", "2", *TWO, "--reserve", "1,2,3"), "reserve = 1,2,3 has 3 numbers of MiB"),
)
PLACING: tuple[tuple[str, ...], ...] = (
    ("run", "MODEL", "hi"), ("serve", "MODEL"), ("bench", "MODEL"), ("plan", "MODEL"),
    ("eval", "logits", "MODEL", "--tokens", "1", "--out", "{folder}/l.npy"), (*PPL, *FILE),
    (*KL, *FILE, "--base-run", ""),
)  # fmt: skip


@pytest.fixture
def addressed(
    empty_hub: FakeHub, tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> FakeHub:
    """A hub that has a model under each kind of address, on a machine without GPUs."""
    content = tiny("llama").read_bytes()
    empty_hub.files["tiny.gguf"] = content
    empty_hub.repos["o/tiny"] = {"tiny-F16.gguf": content, "tiny-F32.gguf": content}
    (tmp_path / "text.txt").write_text("a text " * 100)
    fetched = {"path": str(tmp_path / "m.gguf"), "urls": [f"{empty_hub.url}/files/tiny.gguf"]}
    (tmp_path / "c.json").write_text(json.dumps({"model": fetched}))
    monkeypatch.setattr(gg, "discrete_gpus", list)
    monkeypatch.setattr(gg, "default_device", lambda: gg.device("cpu"))
    return empty_hub


def check_unasked(
    hub: FakeHub, folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: str
) -> None:
    words = [word.replace("{folder}", str(folder)) for word in arguments]
    result = call(capsys, *(word.replace("MODEL", f"{hub.url}/files/tiny.gguf") for word in words))
    assert (result.status, result.out) == (2, "")
    assert expected in result.err
    assert result.err.count("\n") == 1
    assert hub.asked == []


@pytest.mark.parametrize(("arguments", "expected"), UNASKED, ids=lambda value: " ".join(value)[:60])
def test_no_address_is_asked_for_a_mistake_that_needs_no_model(
    arguments: tuple[str, ...], expected: str, addressed: FakeHub, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    check_unasked(addressed, tmp_path, capsys, arguments, expected)


@pytest.mark.parametrize("command", PLACING, ids=lambda command: " ".join(command[:2]))
@pytest.mark.parametrize(("options", "expected"), MISPLACED, ids=lambda value: " ".join(value)[:40])
def test_no_address_is_asked_for_devices_that_cannot_be(
    options: tuple[str, ...], expected: str, command: tuple[str, ...], addressed: FakeHub, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    check_unasked(addressed, tmp_path, capsys, (*command, *options), expected)


@pytest.mark.parametrize("how", ["hf:o/tiny", "--config={folder}/c.json"])
@pytest.mark.parametrize("command", [("run",), ("serve",), ("bench",), ("plan",)], ids=lambda command: command[0])
def test_neither_is_the_hub_nor_what_an_option_file_names(
    command: tuple[str, ...], how: str, addressed: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_unasked(addressed, tmp_path, capsys, (*command, how, "--tp", "9"), "--tp 9 needs 9 GPUs")
    assert not (tmp_path / "m.gguf").exists()
    # without the mistake it is asked
    assert call(capsys, "inspect", how.replace("{folder}", str(tmp_path))).status == 0
    assert addressed.asked


def test_pull_names_both_places_of_excluding_options(
    addressed: FakeHub, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_TP", "2")
    result = call(capsys, "pull", f"{addressed.url}/files/tiny.gguf", "--layer-split", 2)
    assert (result.status, addressed.asked) == (2, [])
    assert "PYGGML_TP and --layer-split exclude each other" in result.err
    monkeypatch.delenv("PYGGML_TP")
    assert call(capsys, "pull", f"{addressed.url}/files/tiny.gguf", "--layer-split", 2, *TWO).status == 0


@pytest.mark.parametrize("options", [("--tp", 9), ("--tp", 2, "--device", "cuda:0,cuda:1")], ids=str)
def test_pull_fetches_for_another_machine(
    options: tuple[Any, ...], addressed: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "pull", f"{addressed.url}/files/tiny.gguf", *options).status == 0
    assert addressed.asked


def test_the_hub_is_asked_for_windows_shorter_than_a_context(
    addressed: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--file", tmp_path / "text.txt", "--ctx", 32, "--windows", 1, "--device", "cpu", "--json")
    result = call(capsys, "eval", "ppl", "hf:o/tiny", *arguments)
    assert result.status == 0, result.err
    assert json.loads(result.out)["n_ctx"] == 32


@pytest.mark.parametrize("command", [("run", "m.gguf", "hi"), ("doctor",), ("devices",)])
def test_a_word_of_a_variable_is_not_blamed_on_the_device(command: tuple[str, ...]) -> None:
    device = () if command == ("devices",) else ("--device", "cpu")
    ended = spawn(*command, *device, PYGGML_P2P="maybe")
    words = "PYGGML_P2P=maybe; one of 0, off, no, false, 1, on, yes, true is needed"
    assert (ended.returncode, ended.stderr) == (2, f"pyggml {command[0]}: {words}\n")
