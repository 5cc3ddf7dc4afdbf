"""README.md and pages of docs hold what they say: code blocks run, links and files exist, the file tree is complete.

Blocks of a page run in order and share their names, in a folder with a tiny model as `model.gguf` and SmolLM2 as
`smollm2`. The hub is one of our own, and has every repository that is named. What a line of
Python prints must be what its comment `# -> ...` says.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_calls import call
from fake_hub import FakeHub

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/models.md", "docs/python.md")
LINKING_PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


class Block(NamedTuple):
    """A fenced block of code. `line` is that of its first line in the page."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: str, language: str) -> list[Block]:
    text = (ROOT / page).read_text()
    fences = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    found = [Block(page, text.count("\n", 0, m.start(2)) + 1, m[1], m[2]) for m in fences]
    return [block for block in found if block.language == language]


def commands() -> list[str]:
    """The lines of all shell blocks that call pyggml, without their comments."""
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.text.splitlines()]
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.startswith("pyggml ")]


@pytest.fixture
def folder(
    tmp_path: Path, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, empty_hub: FakeHub
) -> Path:
    model = tiny("llama", quant="Q8_0")
    (tmp_path / "model.gguf").symlink_to(model)
    text = "".join((ROOT / page).read_text() for page in PAGES)
    for repo in re.findall(r"hf:([\w.-]+/[\w.-]+)", text):
        names = ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-F16.gguf")
        empty_hub.repos[repo] = dict.fromkeys(names, model.read_bytes())
    empty_hub.files["model.gguf"] = model.read_bytes()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run_and_print_what_they_say(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    found = blocks(page, "python")
    for block in found:
        capsys.readouterr()
        source = "\n" * (block.line - 1) + block.text  # a traceback then names the page's line
        exec(compile(source, str(ROOT / page), "exec"), names)
        printed = iter(capsys.readouterr().out.splitlines())
        for expected in re.findall(r"# -> (.*)", block.text):
            assert expected in printed, f"{page}:{block.line} does not print {expected!r}"
    assert found, f"{page} has no Python blocks"


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("pyggml serve")])
def test_command_lines_exit_0(
    command: str,
    folder: Path,
    empty_hub: FakeHub,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = shlex.split(command.replace("https://example.com", f"{empty_hub.url}/files"))[1:]
    if "smollm2" in words:
        (folder / "smollm2").symlink_to(request.getfixturevalue("smollm2"))
    if "rm" in words or "--offline" in words:
        named = next(word for word in words if word.startswith("hf:"))
        assert call(capsys, "pull", named, "--no-offline").status == 0
    result = call(capsys, *words)
    assert result.status == 0, result.err


def test_every_command_is_in_the_readme() -> None:
    from pyggml.engine.cli.commands import COMMANDS

    said = "\n".join(commands())
    assert [name for name in COMMANDS if f"pyggml {name}" not in said] == []


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page: str) -> None:
    text, makefile = (ROOT / page).read_text(), (ROOT / "Makefile").read_text()
    targets = re.findall(r"^ *make (\w+)|`make (\w+)`", text, re.MULTILINE)
    assert [t for pair in targets for t in pair if t and f"\n{t}:" not in makefile] == []


@pytest.mark.parametrize("page", LINKING_PAGES)
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def tree_paths() -> Iterator[str]:
    """The paths in the README's file tree; those of folders end in a slash."""
    (block,) = blocks("README.md", "text")
    parents: list[str] = []
    for line in block.text.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        parents[depth:] = [name]
        stem, braces, suffixes = name.partition("{")
        names = [stem + suffix for suffix in suffixes.rstrip("}").split(",")] if braces else [name]
        yield from ("".join([*parents[:depth], each]) for each in names)


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so nothing says which files belong to the project")
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_the_file_tree_has_every_file_or_its_folder() -> None:
    said, tracked = list(tree_paths()), tracked_files()
    assert len(said) == len(set(said))
    whole = [path for path in said if path.endswith("/") and sum(other.startswith(path) for other in said) == 1]
    # The folders below tests/ have lines of their own, its files do not.
    in_folders = {t for t in tracked if t.startswith((*whole, "tests/"))}
    missing = [t for t in tracked if t not in said and t not in in_folders]
    assert missing == [], f"add lines to the README's file tree for: {', '.join(missing)}"


def test_the_file_tree_has_nothing_that_is_not_there() -> None:
    tracked = tracked_files()
    folders = {f"{parent}/" for t in tracked for parent in Path(t).parents}
    gone = [path for path in tree_paths() if path not in tracked and path not in folders]
    assert gone == [], f"remove lines from the README's file tree for: {', '.join(gone)}"
