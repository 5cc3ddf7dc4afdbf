"""A chat on a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import Terminal
from forced import write_forced


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forced(tmp_path_factory.mktemp("chat") / "short.gguf", "Paris it is").path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forced(
        tmp_path_factory.mktemp("chat") / "endless.gguf", "tick tock ", loops=True, n_ctx=65536
    ).path


def test_ctrl_c_stops_the_answer_and_not_the_chat(endless: Path, tmp_path: Path) -> None:
    with Terminal("run", endless, "--temp", 0, environment={"XDG_STATE_HOME": str(tmp_path)}) as person:
        person.wait_for("> ")
        person.type("go on\n")
        person.wait_for("tock")
        person.type("\x03")
        person.wait_for(r"\[stopped\]")
        person.wait_for("> ")
        person.type("more\n")
        person.wait_for("tock")
        person.type("\x03")
        person.wait_for("> ")
        person.type("/exit\n")
        assert person.status() == 0


def test_the_conversation_is_kept_until_clear(short: Path, tmp_path: Path) -> None:
    with Terminal("run", short, "--temp", 0, environment={"XDG_STATE_HOME": str(tmp_path)}) as person:
        person.type("one\n")
        first = person.wait_for(r"\[(\d+) prompt tokens, ")
        person.type("two\n")
        second = person.wait_for(r"\[(\d+) prompt tokens \((\d+) cached\)")
        person.type("/clear\n")
        person.type("one\n")
        third = person.wait_for(r"\[(\d+) prompt tokens")
        person.wait_for("> ")
        person.type("\x04")
        assert person.status() == 0
    assert int(second[1]) > int(first[1])
    assert int(second[2]) >= int(first[1])
    assert third[1] == first[1]


def test_typed_lines_are_kept_for_the_next_chat(short: Path, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    with Terminal("run", short, environment=state) as person:
        person.wait_for("> ")
        person.type("what about Rome\n")
        person.wait_for("generated")
        person.type("/exit\n")
        assert person.status() == 0
    with Terminal("run", short, environment=state) as person:
        person.wait_for("> ")
        person.type("\x1b[A\x1b[A")
        person.wait_for("what about Rome")


def test_a_base_model_says_so(short: Path, tmp_path: Path) -> None:
    with Terminal("run", short, "--raw", environment={"XDG_STATE_HOME": str(tmp_path)}) as person:
        person.wait_for("--raw: each line is continued as it stands")


def test_a_refused_line_does_not_end_the_chat(short: Path, tmp_path: Path) -> None:
    with Terminal("run", short, "--ctx", 64, environment={"XDG_STATE_HOME": str(tmp_path)}) as person:
        person.wait_for("> ")
        person.type("0123456789" * 8 + "\n")
        person.wait_for("at most 63 fit")
        person.type("/nonsense\n")
        person.wait_for("there is no /nonsense")
        person.wait_for("> ")
        person.type("\x03")
        person.wait_for("> ", again="\x03")
        person.type("short\n")
        person.wait_for("Paris it is")


def test_json_is_refused_for_a_chat(short: Path, tmp_path: Path) -> None:
    with Terminal("run", short, "--json", environment={}) as person:
        person.wait_for("--json needs a PROMPT")
        assert person.status() == 2
