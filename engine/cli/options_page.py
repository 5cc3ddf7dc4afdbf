"""The page of all options, in Markdown, made from the table."""

from __future__ import annotations

from collections.abc import Sequence

from .option import Option

_INTRODUCTION = """\
# Options

This page is made from the table in `engine/cli/options.py`: `python -m pyggml.engine.cli.options > docs/options.md`.

Each option may be given on the command line, in the environment, or in a JSON file named by `--config`, where its long
name is the key (`{"model": "model.gguf", "ctx": 8192, "stop": ["###"]}`). The command line wins over the environment,
the environment over files, later files over earlier ones; options that may be given several times add up instead.
A switch `--x` has an opposite `--no-x`, and is `true` or `false` in a file; in the environment also `1` and `0`.
Files may hold comments (`//` and `/* */`) and commas before a closing bracket; `null` is as if the key were absent.
A key that no command knows is refused; one that is another command's is left to it: one file may serve several.
"""


def page(options: Sequence[Option]) -> str:
    """The page as text."""
    lines = [_INTRODUCTION, "| option | environment | commands | default | example | |", "| --- " * 6 + "|"]
    for option in options:
        names = ", ".join(f"`{flag}`" for flag in option.flags)
        value = "" if option.positional or option.kind.is_flag else f" `{option.kind.metavar}`"
        cells = (
            names + value,
            f"`{option.environment}`",
            ", ".join(option.commands),
            option.shown_default,
            f"`{option.shown_example}`",
            option.help,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
