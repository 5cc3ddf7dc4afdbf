#!/usr/bin/env python3
"""How far our predictions are from llama.cpp's, in every mode, beside how far llama.cpp's are from its own.

usage: compare_kl.py [MODEL ...] [--folder kl] [--windows 12] [--ctx 2048] [--floors 2048,32] [--modes one,"tp 2"]
                     [--threads 1]

llama.cpp keeps its log-probabilities of a text (bench/corpus.py) with micro-batches of 512 tokens. Its noise floors are
runs of its own with other micro-batches, ours are `pyggml eval kl` on CPU ranks. 12 windows of 2048 tokens are 12,276
positions. What was measured is kept in the folder, row by row, so that a run that was stopped goes on; the files take
twice 1.2 GB (SmolLM2) and 6.4 GB (Gemma 3). Prints a table in Markdown. Needs `build_ggml.py --reference`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from corpus import corpus, fingerprint
from peer import reference_bin

from pyggml.engine import Model
from pyggml.engine.divergence import Positions, compare, figures
from pyggml.engine.logprob_file import LogprobFile

BASE_UBATCH = 512
MODES = {
    "one": ["--device", "cpu"],
    "tp 2": ["--device", "cpu,cpu", "--tp", "2"],
    "tp 3": ["--device", "cpu,cpu,cpu", "--tp", "3"],
    "layer split 2": ["--device", "cpu,cpu", "--layer-split", "2"],
}


class Rows:
    """What was measured so far, a line of JSON each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {row["key"]: row for row in map(json.loads, lines)}

    def get(self, key: str) -> dict[str, Any] | None:
        """The row of that name."""
        return self._rows.get(key)

    def add(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        """Keep a row."""
        row = {"key": key, "date": datetime.date.today().isoformat(), **row}
        self._rows[key] = row
        with open(self._path, "a") as file:
            file.write(json.dumps(row) + "\n")
        return row


def save(path: Path, text: Path, file: Path, ubatch: int, args: argparse.Namespace) -> None:
    """llama.cpp's log-probabilities with micro-batches of that many tokens, unless the file is there."""
    if file.exists():
        return
    partial = file.with_suffix(".part")
    run([
        str(reference_bin() / "llama-perplexity"), "-m", str(path), "-f", str(text), "-c", str(args.ctx),
        "-b", str(args.ctx), "-ub", str(ubatch), "--chunks", str(args.windows), "-t", str(args.threads), "-ngl", "0",
        "--kl-divergence-base", str(partial),
    ])  # fmt: skip
    os.replace(partial, file)


def floor_row(base: Path, other: Path) -> dict[str, Any]:
    """How far one file is from another."""
    right, theirs = LogprobFile(base), LogprobFile(other)
    windows = right.windows(None)
    found = [compare(right.rows(w), theirs.rows(w), windows.following(w)) for w in range(len(windows))]
    return row_of(figures(Positions.joined(found), of_file=True))


def row_of(found: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a comparison."""
    kl = found["kl"]
    return {
        "mean": kl["mean"], "error": kl["error"], "maximum": kl["maximum"], "q99": kl["quantiles"]["99 %"],
        "median": kl["median"], "same_top": found["same_top"]["mean"],
        "perplexity": found["perplexity"]["value"], "n_identical": found["n_identical"],
        "n_positions": found["n_positions"],
    }  # fmt: skip


def run(command: list[str]) -> str:
    """Run a program and return what it printed; its errors end this one."""
    print(f"{datetime.datetime.now():%H:%M:%S} {shlex.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}")
    return done.stdout


def measured(name: str, args: argparse.Namespace) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """The file's name and all rows of one model, measured or kept."""
    model = Model(name)
    path = Path(model.path)
    model.close()
    args.folder.mkdir(parents=True, exist_ok=True)
    text, base = args.folder / "corpus.txt", args.folder / f"{path.stem}-{args.ctx}x{args.windows}.logits"
    text.write_text(corpus())
    save(path, text, base, BASE_UBATCH, args)
    rows, found = Rows(args.folder / f"{base.stem}.jsonl"), []
    for ubatch in args.floors:
        key = f"llama.cpp, micro-batches of {ubatch}"
        row = rows.get(key)
        if row is None:
            other = base.with_name(f"{base.stem}-{ubatch}.logits")
            save(path, text, other, ubatch, args)
            row = rows.add(key, floor_row(base, other))
            other.unlink()
        found.append((key, row))
    for mode in args.modes:
        row = rows.get(mode)
        if row is None:
            command = [sys.executable, "-m", "pyggml.engine.cli", "eval", "kl", str(path), "--base", str(base)]
            command += ["--file", str(text), "--threads", str(args.threads), "--json", *MODES[mode]]
            row = rows.add(mode, row_of(json.loads(run(command))["run"]))
        found.append((mode, row))
    return path.stem, found


def table(results: dict[str, list[tuple[str, dict[str, Any]]]]) -> str:
    """The rows in Markdown."""
    lines = ["| model | run | mean KL | 99 % | maximum | same likeliest token | perplexity | identical |"]
    lines.append("| --- " * 8 + "|")
    for model, rows in results.items():
        for k, (name, row) in enumerate(rows):
            identical = f"{row['n_identical']} of {row['n_positions']}"
            cells = (
                model if k == 0 else "", name, f"{row['mean']:.3g}", f"{row['q99']:.3g}", f"{row['maximum']:.3g}",
                f"{100 * row['same_top']:.2f} %", f"{row['perplexity']:.4f}", identical,
            )  # fmt: skip
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument("--folder", type=Path, default=Path("kl"))
    parser.add_argument("--windows", type=int, default=12)
    parser.add_argument("--ctx", type=int, default=2048)
    parser.add_argument("--floors", type=lambda text: [int(n) for n in text.split(",")], default=[2048, 32])
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    results = dict(measured(name, args) for name in args.models)
    n = args.windows * (args.ctx - 1 - args.ctx // 2)
    where = f"{args.windows} windows of {args.ctx} tokens, text {fingerprint(corpus())}"
    print(f"{datetime.date.today()}, {n} positions in {where}; base: llama.cpp with micro-batches of {BASE_UBATCH}")
    print(table(results))


if __name__ == "__main__":
    main()
