"""Help, and that it costs nothing: neither numpy nor ggml is imported for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_calls import HANG_S, call

import pyggml
import pyggml.engine
from pyggml.engine.cli.commands import COMMANDS
from pyggml.engine.cli.options import OPTIONS, options_of
from pyggml.engine.cli.options_page import ENVIRONMENT, page

# The command's own imports, apart from those of the packages around it.
ALONE = """
import importlib, sys, types
for name, path in zip(("pyggml", "pyggml.engine"), sys.argv[1:3]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
vars(sys.modules["pyggml"]).update(vars(importlib.import_module("pyggml.errors")))
from pyggml.engine.cli.main import main
status = main(sys.argv[3:])
heavy = {"numpy", "_cffi_backend", "jinja2", "tokenizers", "tqdm", "huggingface_hub", "pyggml._ggml", "pyggml._ffi"}
heavy &= set(sys.modules)
sys.exit(f"imported: {heavy}" if heavy else status)
"""


def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    folders = [str(Path(str(module.__file__)).parent) for module in (pyggml, pyggml.engine)]
    command = [sys.executable, "-c", ALONE, *folders, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), *((*name.split(), "--help") for name in COMMANDS), ("run",)], ids=" ".join
)
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    ended = run_alone(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_wrong_option_imports_nothing_heavy() -> None:
    ended = run_alone("run", "model.gguf", "--ctx", "abc")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("arguments", [(), ("--help",)], ids=["nothing", "--help"])
def test_the_overview_has_every_command_and_option(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, *arguments)
    assert result.status == 0
    assert all(f"pyggml {name}" in result.out for name in COMMANDS)
    assert all(flag in result.out for option in OPTIONS for flag in option.flags)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_its_options_with_default_environment_and_example(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # narrow lines break at hyphens
    result = call(capsys, *name.split(), "--help")
    words = " ".join(result.out.split())
    assert result.status == 0
    for option in options_of(name).values():
        assert option.flags[0] in words
        assert option.shown_default in words
        assert option.environment in words
        assert option.shown_example in words


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("devices", "doctor", "list")])
def test_a_command_without_arguments_shows_its_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, *name.split()) == call(capsys, *name.split(), "--help")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_can_be_loaded(name: str) -> None:
    assert callable(COMMANDS[name].load())


def test_the_page_of_options_is_current() -> None:
    stored = Path(__file__).parent.parent / "docs" / "options.md"
    remedy = "python -m pyggml.engine.cli.options > docs/options.md"
    assert stored.read_text() == page(OPTIONS), f"run: {remedy}"


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version").out.startswith("pyggml ")


def test_the_page_has_every_variable_that_the_packages_read() -> None:
    root = Path(__file__).parent.parent
    sources = [path for package in ("pyggml", "engine", "server") for path in (root / package).rglob("*.py")]
    reading = re.compile(r"\b(?:environ|is_on)\b[^\n]*?(PYGGML_[A-Z_0-9]+)")
    read = {name for path in sources for name in reading.findall(path.read_text())}
    assert read and read <= set(ENVIRONMENT) | {option.environment for option in OPTIONS}
    assert set(ENVIRONMENT) <= read
