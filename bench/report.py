"""Rows and targets of a comparison for people, and the one line of JSON that ends it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from targets import Goal, Row, goals

from pyggml.engine.cli.table import render


def shown(value: float | None, digits: int = 1) -> str:
    """A number, or a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}f}"


def print_report(rows: Sequence[Row], devices: Sequence[str], bandwidth: float, seconds: float) -> None:
    """The table, the targets where the devices are GPUs, notes, and the JSON line."""
    found = [] if devices[0].startswith("cpu") else goals(rows)
    where = ", ".join(devices)
    print(f"\ntokens a second, medians, on {where}; memory copies at {bandwidth / 1e12:.2f} TB/s a device\n")
    header = ("model", "mode", "work", "ours", "llama.cpp", "ratio", "ceiling", "in Python", "target")
    print(render([_cells(row, bool(found)) for row in rows], header=header, right=(3, 4, 5, 6, 7)))
    for note in dict.fromkeys(f"{row.mode}: {row.note}" for row in rows if row.note):
        print(note)
    if found:
        print("\ntargets (first, then)\n")
        print(render([_goal_cells(goal) for goal in found], right=(1, 2, 3)))
    document = {
        "devices": list(devices), "bandwidth": bandwidth, "seconds": round(seconds),
        "rows": [row.document() for row in rows],
        "targets": [{**asdict(goal), "verdict": goal.verdict} for goal in found],
    }  # fmt: skip
    print(json.dumps(document), flush=True)


def _cells(row: Row, has_targets: bool) -> tuple[str, ...]:
    share = "" if row.python_share is None else f"{100 * row.python_share:.1f} %"
    target = ""
    if has_targets and row.target is not None:
        first, then = row.target
        reached = "-" if row.ratio is None else Goal("", row.ratio, first, then).verdict
        target = f"{first:.2f}, {then:.2f}: {reached}"
    work = f"{row.what} {row.n}"
    return (
        row.model, row.mode, work, shown(row.our_speed), shown(row.their_speed), shown(row.ratio, 2),
        shown(row.ceiling), share, target,
    )  # fmt: skip


def _goal_cells(goal: Goal) -> tuple[str, ...]:
    if goal.at_most:
        numbers = tuple(f"{100 * v:.1f} %" for v in (goal.value, goal.first, goal.then))
    else:
        numbers = tuple(f"{v:.2f}" for v in (goal.value, goal.first, goal.then))
    return (goal.name, *numbers, goal.verdict)
