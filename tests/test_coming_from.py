"""docs/coming_from.md: what it says is ours exists, and what it says is llama-server's does too."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from pages import text_of

from pyggml.engine import LLM, SamplingParams
from pyggml.engine.cli.options import NAMES, OPTIONS

PAGE = "docs/coming_from.md"
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z0-9-]*")
OURS = {flag for option in OPTIONS for flag in option.flags} | {f"--no-{name}" for name in NAMES} | {"--help"}


class Row(NamedTuple):
    """A line of a table: their words, ours, and a remark."""

    section: str
    theirs: str
    ours: str
    remark: str


def rows() -> list[Row]:
    found, section = [], ""
    for line in text_of(PAGE).splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| ") and not line.startswith(("| ---", "| theirs")):
            found.append(Row(section, *(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:4])))
    return found


def test_there_is_a_table_for_each_program() -> None:
    assert {row.section.split(",")[0] for row in rows()} == {
        "llama-server", "vLLM", "SGLang", "Ollama", "llama-cpp-python", "TensorSharp",
    }  # fmt: skip


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.section}: {row.theirs}")
def test_every_option_that_is_called_ours_exists(row: Row) -> None:
    said = row.theirs if row.ours == "the same" else f"{row.ours} {row.remark if 'ours' in row.remark else ''}"
    spans = " ".join(re.findall(r"`([^`]*)`", said))
    flags = [flag for flag in FLAG.findall(spans) if flag not in OURS]
    variables = [v for v in re.findall(r"PYGGML_[A-Z0-9_]+", spans) if f"`{v}`" not in text_of("docs/options.md")]
    assert (flags, variables) == ([], [])
    assert row.ours == "nothing" or "`" in row.ours or row.ours in ("the same", "the first word", "a GGUF file")


def test_every_name_of_ours_in_scripts_exists() -> None:
    known = {*inspect.signature(LLM).parameters, *(f.name for f in dataclasses.fields(SamplingParams)), "stream"}
    ours = [row.ours for row in rows() if row.section == "llama-cpp-python" and "pyggml" not in row.ours]
    in_code = [span for cell in ours for span in re.findall(r"`([^`]*)`", cell)]
    names = [name for span in in_code for name in re.findall(r"^\w+|\w+(?==)", span)]
    methods = {"score", "generate"}
    assert names and [name for name in names if name not in known | methods | {"logits"}] == []
    assert all(hasattr(LLM, method) for method in methods)


def test_llama_servers_options_are_its_own(reference_bin: Path) -> None:
    done = subprocess.run([reference_bin / "llama-server", "--help"], capture_output=True, text=True, check=False)
    there = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))
    theirs = [row.theirs for row in rows() if row.section.startswith("llama-server")]
    said = [flag for cell in theirs for span in re.findall(r"`([^`]*)`", cell) if "…" not in span and " -" not in span
            for flag in FLAG.findall(span)]  # fmt: skip
    gone = [flag for flag in said if flag not in there and flag != "-100"]
    assert len(said) > 60 and gone == []
