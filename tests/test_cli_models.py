"""Names of the hub and plain addresses on the command line, and `pyggml pull`, `list` and `rm`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import Terminal, call, spawn
from fake_hub import FakeHub, sha256
from server_process import ServerProcess


@pytest.fixture
def hub(empty_hub: FakeHub, tiny: Callable[..., Path]) -> FakeHub:
    """A hub with a tiny model in two quantisations, and at a plain address."""
    large, small = (tiny("llama", quant=quant).read_bytes() for quant in ("F16", "Q8_0"))
    empty_hub.repos["o/tiny"] = {"tiny-F16.gguf": large, "tiny-Q8_0.gguf": small, "mmproj-F32.gguf": large * 2}
    empty_hub.files["tiny.gguf"] = small
    return empty_hub


@pytest.mark.parametrize("name", ["hf:o/tiny", "hf:o/tiny:q8_0", "URL"])
@pytest.mark.parametrize(
    "command",
    [
        ("run", "MODEL", "hi", "-n", "1", "--device", "cpu"),
        ("plan", "MODEL", "--device", "cpu,cpu", "--no-measure"),
        ("inspect", "MODEL"),
        ("bench", "MODEL", "-p", "16", "-n", "2", "--repeat", "1", "--device", "cpu"),
        ("eval", "logits", "MODEL", "--tokens", "1,2", "--out", "l.npy", "--device", "cpu"),
    ],
    ids=lambda command: command[0],
)
def test_commands_take_a_model_that_lies_elsewhere(
    command: tuple[str, ...], name: str, hub: FakeHub, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    name = name.replace("URL", f"{hub.url}/files/tiny.gguf")
    result = call(capsys, *[word.replace("MODEL", name) for word in command])
    assert result.status == 0, result.err
    assert ("F16 is taken" in result.err) == (name == "hf:o/tiny")
    n_asked = len(hub.asked)
    assert call(capsys, *[word.replace("MODEL", name) for word in command], "--offline").status == 0
    assert len(hub.asked) == n_asked


def test_a_server_takes_a_model_of_the_hub(hub: FakeHub) -> None:
    with ServerProcess("hf:o/tiny:Q8_0", "--device", "cpu", "--ctx", "64") as server:
        reply = server.post("/v1/completions", {"model": "tiny-Q8_0", "prompt": "a", "max_tokens": 1})
        assert reply.status == 200, reply.body


def test_pull_prints_where_the_model_lies(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    first = call(capsys, "pull", "hf:o/tiny:Q8_0")
    path, size = re.fullmatch(r"(\S+)  \((.+ MiB), \2 new\)\n", first.out).groups()  # type: ignore[union-attr]
    assert Path(path).read_bytes() == hub.repos["o/tiny"]["tiny-Q8_0.gguf"]
    assert call(capsys, "pull", "hf:o/tiny:Q8_0").out == f"{path}  ({size}, nothing new)\n"
    document = json.loads(call(capsys, "pull", "hf:o/tiny:Q8_0", "--json").out)
    assert document == {
        "name": "hf:o/tiny:Q8_0", "quantisation": "Q8_0", "path": path, "files": [path],
        "n_bytes": Path(path).stat().st_size, "n_new_bytes": 0,
    }  # fmt: skip


def test_list_shows_what_is_here_and_what_a_repository_has(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "list").out.startswith("no model was fetched yet")
    assert call(capsys, "list", "--json").out == "[]\n"
    call(capsys, "pull", "hf:o/tiny:Q8_0")
    call(capsys, "pull", f"{hub.url}/files/tiny.gguf")
    assert [line.split()[0] for line in call(capsys, "list").out.splitlines()] == [
        "model", "hf:o/tiny:Q8_0", f"{hub.url}/files/tiny.gguf",
    ]  # fmt: skip
    documents = json.loads(call(capsys, "list", "--json").out)
    assert all(Path(each["path"]).stat().st_size == each["n_bytes"] for each in documents)
    offered = json.loads(call(capsys, "list", "hf:o/tiny", "--json").out)
    assert [(each["name"], each["fits"], each["is_here"]) for each in offered] == [
        ("hf:o/tiny:F16", True, False),
        ("hf:o/tiny:Q8_0", True, True),
    ]
    rows = [line.split() for line in call(capsys, "list", "hf:o/tiny").out.splitlines()]
    assert [(row[0], row[-2:]) for row in rows[:3]] == [
        ("model", ["fits", "here"]), ("hf:o/tiny:F16", ["yes", "no"]), ("hf:o/tiny:Q8_0", ["yes", "yes"]),
    ]  # fmt: skip


def test_rm_removes_what_it_names(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("hf:o/tiny:Q8_0", "hf:o/tiny:F16", f"{hub.url}/files/tiny.gguf"):
        call(capsys, "pull", name)
    assert re.fullmatch(r"hf:o/tiny:F16: removed, .* MiB are free again\n", call(capsys, "rm", "hf:o/tiny:F16").out)
    assert json.loads(call(capsys, "rm", "hf:o/tiny", "--json").out)["name"] == "hf:o/tiny"
    assert call(capsys, "rm", f"{hub.url}/files/tiny.gguf").status == 0
    assert call(capsys, "list", "--json").out == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("run", "hf:o/tiny:Q4_0", "hi"), 2, "MODEL: hf:o/tiny has no Q4_0; did you mean Q8_0?; it has F16, Q8_0"),
        (("run", "hf:o/tiny:mmproj-F32.gguf", "hi"), 2, "has no mmproj-F32.gguf"),
        (("run", "hf:tiny", "hi"), 2, "MODEL: 'hf:tiny' names no model of the hub; the form is hf:owner/repo"),
        (("inspect", "hf:o/none"), 2, "MODEL: hf:o/none is not there, or is private"),
        (("inspect", "hf:o/tiny", "--offline"), 2, "MODEL: hf:o/tiny is not on this disk, and --offline"),
        (("pull", "hf:o/tiny", "--offline"), 2, "cannot be fetched: --offline"),
        (("list", "hf:o/tiny", "--offline"), 2, "cannot be looked at: --offline"),
        (("list", "hf:o/tiny:Q8_0"), 2, "MODEL: a repository is needed"),
        (("pull", "model.gguf"), 2, "MODEL: 'model.gguf' is no address"),
        (("pull", "http://[::1/x.gguf"), 2, "MODEL: 'http://[::1/x.gguf' is no address: Invalid IPv6 URL"),
        (("pull", "http://host:99999/x.gguf"), 2, "is no address: Port out of range"),
        (("rm", "http://host/a%00.gguf"), 2, "is no address: no file can have %00 in its name"),
        (("rm", "smollm2"), 2, "smollm2 is a PyPI package, for pip to install and uninstall"),
        (("rm", "hf:o/tiny"), 2, "hf:o/tiny is not on this disk; pyggml list shows what is"),
        (("pull", "hf:o/tiny:F16"), 1, "tiny-F16.gguf has the SHA-256"),
        (("run", "model-that-is-not-there", "hi"), 2, "give a path to a .gguf file, hf:owner/repo[:quant], an address"),
    ],
)
def test_what_goes_wrong_is_one_line_with_a_status(
    arguments: tuple[str, ...], status: int, message: str, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.wrong.add("tiny-F16.gguf")
    result = call(capsys, *arguments)
    assert (result.status, result.out) == (status, "")
    assert message in result.err.splitlines()[-1]


def test_a_name_in_a_file_and_offline_in_the_environment(hub: FakeHub, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"model": "hf:o/tiny:Q8_0", "device": "cpu"}')
    arguments: tuple[Any, ...] = ("inspect", "--config", tmp_path / "c.json")
    refused = spawn(*arguments, PYGGML_OFFLINE="1")
    assert (refused.returncode, "c.json: model: hf:o/tiny:Q8_0 is not on this disk" in refused.stderr) == (2, True)
    assert spawn(*arguments).returncode == 0
    assert spawn(*arguments, HF_HUB_OFFLINE="1").returncode == 0


@pytest.fixture
def option_file(hub: FakeHub, tmp_path: Path) -> Callable[..., Path]:
    """Writes an option file whose model is to be fetched to `m.gguf`."""

    def write(*urls: str, **others: object) -> Path:
        path = tmp_path / "c.json"
        model = {"path": str(tmp_path / "folder" / "m.gguf"), "urls": [hub.url + url for url in urls], **others}
        path.write_text(json.dumps({"model": model}))
        return path

    return write


def test_a_file_of_an_option_file_is_fetched_once(
    hub: FakeHub, option_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = hub.files["tiny.gguf"]
    config = option_file("/files/none.gguf", "/files/tiny.gguf", sha256=sha256(content).upper())
    assert call(capsys, "inspect", "--config", config).status == 0
    assert (tmp_path / "folder" / "m.gguf").read_bytes() == content
    hub.asked.clear()
    assert call(capsys, "inspect", "--config", config, "--offline").status == 0
    assert hub.asked == []


def test_a_file_that_the_command_line_replaces_is_not_fetched(
    hub: FakeHub, option_file: Callable[..., Path], tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    config = option_file("/files/tiny.gguf")
    result = call(capsys, "inspect", tiny("llama", quant="Q8_0"), "--config", config)
    assert result.status == 0 and "MODEL overrides" in result.err
    assert hub.asked == []


def test_other_files_than_models_are_fetched_too(
    hub: FakeHub, tmp_path: Path, tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.files["t.jinja"] = b"{{ messages[0].content }}"
    template = {"path": str(tmp_path / "t.jinja"), "urls": [f"{hub.url}/files/t.jinja"]}
    (tmp_path / "c.json").write_text(json.dumps({"chat-template": template, "device": "cpu"}))
    result = call(capsys, "run", tiny("llama", quant="Q8_0"), "hi", "-n", "1", "--config", tmp_path / "c.json")
    assert result.status == 0, result.err
    assert (tmp_path / "t.jinja").read_bytes() == hub.files["t.jinja"]


@pytest.mark.parametrize(
    ("urls", "others", "status", "message"),
    [
        (("/files/a.gguf", "/files/b.gguf"), {}, 1, "m.gguf could not be fetched: .*a.gguf is not there.*; .*b.gguf"),
        (("/files/tiny.gguf",), {"sha256": "a" * 64}, 1, f"tiny.gguf has the SHA-256 .* in place of {'a' * 64}"),
        (("/files/page.gguf",), {}, 1, "page.gguf is no GGUF file"),
        ((), {}, 2, "c.json: model: urls must be a list of addresses"),
        (("/x",), {"sha256": "a"}, 2, "c.json: model: sha256 must be 64 hexadecimal digits"),
        (("/x",), {"md5": "a"}, 2, "c.json: model: there is no 'md5' in a file"),
        (("/x",), {"path": ""}, 2, "c.json: model: path must be that of a file"),
        (("/x",), {"path": "a\0b"}, 2, "c.json: model: path must be that of a file"),
        ((":99999/x",), {}, 2, "c.json: model: 'http://.*:99999/x' is no address: "),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_had_is_refused(
    urls: tuple[str, ...], others: dict[str, str], status: int, message: str, hub: FakeHub,
    option_file: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.files["page.gguf"] = b"<html>"
    result = call(capsys, "inspect", "--config", option_file(*urls, **others))
    assert result.status == status and re.search(message, result.err), result.err
    assert not list(tmp_path.rglob("m.gguf*"))


def test_names_of_files_move_no_cursor(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repos["o/odd"] = {"m\x1b[2J.gguf": hub.repos["o/tiny"]["tiny-Q8_0.gguf"]}
    result = call(capsys, "pull", "hf:o/odd")
    assert result.status == 0
    assert "m\\x1b[2J" in result.out and "m\\x1b[2J" in result.err
    assert "\x1b" not in result.out + result.err


def test_a_bar_shows_how_far_it_is(hub: FakeHub) -> None:
    hub.break_after["tiny-Q8_0.gguf"] = [10_000]
    with Terminal("pull", "hf:o/tiny:Q8_0", environment={}, n_columns=120) as terminal:
        terminal.wait_for(r"fetching o/tiny:Q8_0: 1 file, .* MiB, into ")
        terminal.wait_for(r"fetching: +\d+%\|")
        terminal.wait_for(r"tiny-Q8_0.gguf  \(.* new\)")
        assert terminal.status() == 0
