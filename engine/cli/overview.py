"""What `pyggml` alone says: the commands, and every option with its default."""

from __future__ import annotations

import importlib.metadata
import shutil
import textwrap

from .commands import COMMANDS
from .options import OPTIONS
from .parser import help_of


def version() -> str:
    """The installed version."""
    try:
        return importlib.metadata.version("pyggml")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def text() -> str:
    """The overview."""
    width = max(60, min(110, shutil.get_terminal_size().columns)) - 2
    names = [f"  pyggml {name} {command.usage}".rstrip() for name, command in COMMANDS.items()]
    column = max(map(len, names)) + 2
    lines = [
        "usage: pyggml COMMAND ... [options]",
        "",
        "Serve and script GGUF language models over ggml.",
        "",
    ]
    lines.append("commands:")
    lines += [f"{name:<{column}}{command.summary}" for name, command in zip(names, COMMANDS.values())]
    lines += ["", "options (pyggml COMMAND --help has those of one command):"]
    for option in OPTIONS:
        metavar = "" if option.positional or option.kind.is_flag else f" {option.kind.metavar}"
        lines.append(f"  {', '.join(option.flags)}{metavar}  [{', '.join(option.commands)}]")
        lines += textwrap.wrap(help_of(option), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines)
