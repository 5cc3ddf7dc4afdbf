#!/usr/bin/env python3
"""Every family in every mode: how far its logits are from llama.cpp's and from those of one rank.

    python tests/family_modes.py [ARCHITECTURE...]      # prints the table of the README as Markdown

The tests of families measure with the same functions.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from own_logits import distance, nmse
from stored_logits import PROMPT, StoredCase, stored_cases
from tiny import FAMILIES, write_tiny
from tiny_families import write_family

from pyggml.engine import LLM, ConfigError
from pyggml.engine.models import MODULES

F32: dict[str, Any] = {"ctx": 256, "cache_type_k": "f32", "cache_type_v": "f32"}
MODES: dict[str, dict[str, Any]] = {
    "tp 2": {"tp": 2},
    "tp 3": {"tp": 3},
    "layer split 2": {"layer_split": 2},
}
COLUMNS = ("F32, F16", "quantised", *MODES)


def writer_of(arch: str) -> Callable[..., Path]:
    """What writes a family's tiny models."""
    return write_tiny if arch in FAMILIES else write_family


def from_reference(path: Path, case: StoredCase, device: str = "cpu", *, limit: float = 1e-6) -> float:
    """The larger distance from llama.cpp's logits, all at once and token by token."""
    cache = {"cache_type_k": case.cache_type, "cache_type_v": case.cache_type}
    return distance(case, lambda: LLM(path, device=device, threads=2, parallel=1, **F32 | cache), limit)


def answered(path: Path, n_ranks: int = 1, device: str = "cpu", **mode: Any) -> tuple[np.ndarray, list[Any]]:
    """All logits of the prompt, and two greedy answers made as one batch."""
    devices = ",".join([device] * n_ranks)
    with LLM(path, device=devices, threads=1, parallel=2, **F32, **mode) as llm:
        logits = llm.score(PROMPT, logits=True)
        answers = llm.generate(["abc", "hello there"], temperature=0, max_tokens=8, ignore_eos=True)
        return logits, [answer.ids for answer in answers]


def ranks_of(mode: dict[str, Any]) -> int:
    """How many ranks a mode has."""
    return int(mode.get("tp") or mode["layer_split"])


def row(arch: str, folder: Path, notes: list[str]) -> list[str]:
    """A family's line of the table: distances, and the number of a note where a shape is refused a mode."""
    plain, quantised = 0.0, 0.0
    apart = dict.fromkeys(MODES, 0.0)
    refused: dict[str, str] = {}
    cases = [case for case in stored_cases(arch) if case.cache_type == "f32"]
    for case in cases:
        path = writer_of(arch)(
            folder / "model.gguf", arch, quant=case.quant, variant=case.variant, seed=case.seed
        )
        distance = from_reference(path, case)
        if case.quant in ("F32", "F16"):
            plain = max(plain, distance)
        else:
            quantised = max(quantised, distance)
        if case.quant != "F32":
            continue
        right, _ = answered(path)
        for name, mode in MODES.items():
            try:
                logits, _ = answered(path, ranks_of(mode), **mode)
            except ConfigError as error:
                refused[name] = str(error)
            else:
                apart[name] = max(apart[name], nmse(logits, right))
    modes = [shown(apart[name]) + _note(refused.get(name), notes) for name in MODES]
    return [f"`{arch}`", shown(plain), shown(quantised), *modes]


def shown(distance: float) -> str:
    """A distance in few characters."""
    return f"{distance:.0e}" if distance else "0"


def _note(refusal: str | None, notes: list[str]) -> str:
    """The number of the note that says why some shapes are refused."""
    if refusal is None:
        return ""
    reason = refusal.split(": ", 1)[-1].split(";")[0]
    if reason not in notes:
        notes.append(reason)
    return f" [{notes.index(reason) + 1}]"


def main() -> None:
    """Print the table."""
    print("| architecture |", " | ".join(COLUMNS), "|")
    print("| --- " * (len(COLUMNS) + 1) + "|")
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for arch in sys.argv[1:] or sorted(MODULES):
            print("|", " | ".join(row(arch, Path(folder), notes)), "|", flush=True)
    for number, note in enumerate(notes, 1):
        print(f"\n[{number}] Refused for some shapes: {note}.")


if __name__ == "__main__":
    main()
