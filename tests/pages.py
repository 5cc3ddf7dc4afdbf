"""README.md and the pages of docs/, as blocks of code and spans of code within the text.

A fence says what its block is by its language, and by a word behind it why it cannot run here:

    ```python            runs, after the blocks above it on the page; what `# -> ...` says is printed
    ```python part       a part of a file: it compiles
    ```sh                each line is a call of pyggml and runs
    ```sh server         runs beside a server on port 8080
    ```sh gpu            needs a GPU, `network` a network, `root` a machine to change: its lines are read, not run
    ```text              no code
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from pyggml.engine.cli.commands import COMMANDS
from pyggml.engine.cli.options import options_of
from pyggml.engine.cli.parser import make_parser, parse
from pyggml.engine.cli.settings import settle

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
FENCE = re.compile(r"^```(\w*) ?([\w ]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=.*")
READ_ONLY = ("gpu", "network", "root")


class Block(NamedTuple):
    """A fenced block of code. `line` is that of its first line in the page, `kind` the word behind its language."""

    page: str
    line: int
    language: str
    kind: str
    text: str

    @property
    def place(self) -> str:
        """Where it is."""
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    """A page."""
    return (ROOT / page).read_text()


def blocks(page: str, language: str | None = None) -> list[Block]:
    """The blocks of a page, in their order."""
    text = text_of(page)
    found = [Block(page, text.count("\n", 0, m.start(3)) + 1, m[1], m[2], m[3]) for m in FENCE.finditer(text)]
    return [block for block in found if language in (None, block.language)]


def spans(page: str) -> list[str]:
    """Code within the text."""
    return SPAN.findall(FENCE.sub("", text_of(page)))


def lines_of(text: str) -> list[list[str]]:
    """The commands of a shell block as words, without comments; lines that end in a backslash are joined."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def without_environment(words: list[str]) -> list[str]:
    """A command without sudo and what is set for it alone. Raises LookupError for a name of ours that is none."""
    while words and (ASSIGNMENT.fullmatch(words[0]) or words[0] in ("sudo", "env", "export")):
        name, is_set, _ = words[0].partition("=")
        if is_set and name.startswith("PYGGML_") and f"`{name}`" not in text_of("docs/options.md"):
            raise LookupError(f"{name} is no variable of docs/options.md")
        words = words[1:]
    return words


def read_command(words: list[str]) -> None:
    """Read a call of pyggml as its command line would: commands, options and the values of options.

    Raises ConfigError, or LookupError for no command.
    """
    words = words[1:]
    if not words or words[0].startswith("-") or words[-1] == "--help":
        return
    name = next((" ".join(words[:n]) for n in (2, 1) if " ".join(words[:n]) in COMMANDS), None)
    if name is None:
        raise LookupError(f"pyggml has no command {words[0]}")
    options = options_of(name)
    given = parse(make_parser(name, COMMANDS[name], options), name, words[len(name.split()) :])
    given.pop("config", None)  # a file that only the reader has
    settle(name, options, given, {})
