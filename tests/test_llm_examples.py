"""examples/chat.py and examples/batch.py as a user runs them, on a model whose answer is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forced import write_forced

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
ANSWER = "Good, 100 %!"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forced(tmp_path_factory.mktemp("examples") / "known.gguf", ANSWER).path


def run(name: str, *arguments: object, typed: str = "") -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    ended = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_chat_answers_every_line_and_reuses_the_conversation(model: Path) -> None:
    out = run("chat.py", model, typed="Hello\nAnd again\n")
    assert out.count(ANSWER) == 2
    n_cached = [int(part.split()[0]) for part in out.split("prompt tokens, ")[1:]]
    assert n_cached[0] == 0 < n_cached[1]


def test_max_tokens_bounds_an_answer_of_the_chat(model: Path) -> None:
    out = run("chat.py", model, "--max-tokens", 1, typed="Hello\n")
    assert ANSWER not in out and "; 1 generated]" in out


def test_batch_answers_every_prompt_and_scores_every_ending(model: Path) -> None:
    lines = run("batch.py", model).splitlines()
    assert [line.endswith(f"|{ANSWER}") for line in lines] == [True] * 3 + [False] * 3
    assert all(float(line.split()[0]) < 0 for line in lines[3:])


@pytest.mark.parametrize("name", ["chat.py", "batch.py"])
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= 40
