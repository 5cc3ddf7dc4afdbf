"""One answer: on standard output, with statistics apart, or as JSON."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import HANG_S, call, spawn
from forced import write_forced

ANSWER = "Blue, for the air scatters it."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forced(tmp_path_factory.mktemp("run") / "sky.gguf", ANSWER).path


def test_the_answer_alone_is_on_standard_output(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "run", model, "Why?", "--temp", 0)
    assert (result.status, result.out) == (0, ANSWER + "\n")


def test_statistics_and_plan_are_on_standard_error(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "run", model, "Why?", "--temp", 0, "--device", "cpu")
    plan, statistics = result.err.splitlines()
    assert plan.startswith("cpu (")
    assert re.fullmatch(
        r"\[\d+ prompt tokens, \d+ generated \(stop\), first after .+, .+ tokens/s\]", statistics
    )


def test_json_is_one_object_with_text_reason_stats_and_plan(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "run", model, "Why?", "--temp", 0, "-n", 3, "--json")
    document = json.loads(result.out)
    assert document.keys() == {"text", "finish_reason", "stats", "plan", "notes"}
    assert (document["text"], document["finish_reason"]) == (ANSWER[:3], "length")
    assert document["stats"]["n_generated"] == 3
    assert [part["device"] for part in document["plan"]] == ["cpu"]
    assert result.err == ""


def test_a_piped_prompt_is_answered(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("Why?\n"))
    piped = call(capsys, "run", model, "--temp", 0, "--json")
    given = call(capsys, "run", model, "Why?", "--temp", 0, "--json")
    counts = [json.loads(result.out)["stats"]["n_prompt"] for result in (piped, given)]
    assert counts[0] == counts[1]


def test_raw_leaves_the_template_out(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = [
        json.loads(call(capsys, "run", model, "XY", *more, "--json").out) for more in ((), ("--raw",))
    ]
    assert documents[1]["stats"]["n_prompt"] == 2 < documents[0]["stats"]["n_prompt"]


def test_a_given_template_takes_the_place_of_the_models(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}#")
    result = call(capsys, "run", model, "XY", "--system", "SS", "--chat-template", template, "--json")
    assert json.loads(result.out)["stats"]["n_prompt"] == len("SSXY#")


def test_a_stop_text_ends_the_answer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "run", model, "Why?", "--temp", 0, "--stop", " scat", "--stop", "nothing")
    assert result.out == "Blue, for the air\n"


def test_a_bias_changes_the_choice(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "run", model, "Why?", "--temp", 0, "-n", 1, "--logit-bias", f"{ord('Q') - 33}=100")
    assert result.status == 0


def test_ctrl_c_ends_an_answer_quietly(tmp_path: Path) -> None:
    endless = write_forced(tmp_path / "endless.gguf", "tick tock ", loops=True, n_ctx=65536).path
    process = subprocess.Popen(
        [sys.executable, "-m", "pyggml.engine.cli", "run", str(endless), "go", "--temp", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=HANG_S)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.decode().count("\n") == 1  # the plan's line and nothing else


def test_a_reader_that_goes_away_is_no_error(model: Path) -> None:
    command = f"{sys.executable} -m pyggml.engine.cli inspect {model} --tensors | true"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert ended.stderr == ""


def test_standard_input_without_a_prompt_is_refused(model: Path) -> None:
    ended = spawn("run", model)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "pyggml run: the prompt is empty; give one as PROMPT or on standard input\n"


def test_an_answer_can_be_held_to_a_form(capsys: pytest.CaptureFixture[str], model: Path, tmp_path: Path) -> None:
    (tmp_path / "word.gbnf").write_text('root ::= "yes" | "no"')
    assert call(capsys, "run", model, "Why?", "--grammar", tmp_path / "word.gbnf").out.strip() in ("yes", "no")
    assert call(capsys, "run", model, "Why?", "--regex", "[0-9]{3}").out.strip().isdecimal()
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": False}
    assert json.loads(call(capsys, "run", model, "Why?", "--json-schema", json.dumps(schema)).out) == {"a": None}
