"""The ratios that this project sets itself, and how far measured rows are from them.

A target has a first value and a next one. Some are about one row, ours against llama.cpp's; others compare rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass
class Row:
    """One kind of work in one mode: tokens a second of each run, ours and llama.cpp's (empty where not measured)."""

    model: str
    mode: str
    what: str  # prefill, decode, parallel, streams
    n: int
    ours: list[float]
    theirs: list[float]
    ceiling: float | None = None
    python_share: float | None = None
    note: str = ""

    @property
    def our_speed(self) -> float | None:
        """Our median."""
        return median(self.ours) if self.ours else None

    @property
    def their_speed(self) -> float | None:
        """llama.cpp's median."""
        return median(self.theirs) if self.theirs else None

    @property
    def ratio(self) -> float | None:
        """Ours over theirs."""
        return self.our_speed / self.their_speed if self.our_speed and self.their_speed else None

    @property
    def target(self) -> tuple[float, float] | None:
        """First and next value for this row's ratio, where it has one of its own."""
        big = self.model.startswith("llama-70b")
        return {
            ("decode", "one"): (1.05, 1.5),
            ("decode", "tp 2"): (1.15, 1.5) if big else (1.4, 2.0),
            ("prefill 16384", "layer 2"): (1.0, 1.1),
            ("prefill 4096", "tp 2"): (1.0, 1.2),
        }.get((self.what if self.what == "decode" else f"{self.what} {self.n}", self.mode))

    def document(self) -> dict[str, Any]:
        """The row for JSON."""
        return {
            "model": self.model, "mode": self.mode, "what": self.what, "n": self.n, "ours": self.our_speed,
            "theirs": self.their_speed, "ratio": self.ratio, "ceiling": self.ceiling, "python_share": self.python_share,
            "target": self.target, "our_runs": self.ours, "their_runs": self.theirs, "note": self.note,
        }  # fmt: skip


@dataclass(frozen=True)
class Goal:
    """A target with what was measured; `at_most` where smaller is better."""

    name: str
    value: float
    first: float
    then: float
    at_most: bool = False

    def meets(self, bound: float) -> bool:
        """Whether the value is on the right side."""
        return self.value <= bound if self.at_most else self.value >= bound

    @property
    def verdict(self) -> str:
        """Which of the two values is reached."""
        return "then" if self.meets(self.then) else "first" if self.meets(self.first) else "missed"


def goals(rows: Sequence[Row]) -> list[Goal]:
    """All targets that these rows decide."""
    found = [
        Goal(f"{r.model}, {r.mode}: {r.what} {r.n}, ours / llama.cpp", r.ratio, *r.target)
        for r in rows
        if r.ratio is not None and r.target is not None
    ]
    for model in dict.fromkeys(r.model for r in rows):
        of_model = [r for r in rows if r.model == model]
        found += _parallel_goals(model, of_model) + _second_gpu_goals(model, of_model)
        shares = [r.python_share for r in of_model if r.what == "decode" and r.python_share is not None]
        if shares:
            name = f"{model}: Python's share of a decode step, the worst mode"
            found.append(Goal(name, max(shares), 0.05, 0.02, at_most=True))
    return found


def _parallel_goals(model: str, rows: Sequence[Row]) -> list[Goal]:
    found = []
    for n in sorted({r.n for r in rows if r.what in ("parallel", "streams") and r.n > 1}):
        for what in ("parallel", "streams"):
            of_n = [r for r in rows if r.what == what and r.n == n and r.mode in ("one", "tp 2")]
            ours = max((r.our_speed for r in of_n if r.our_speed), default=None)
            theirs = max((r.their_speed for r in of_n if r.their_speed), default=None)
            if ours and theirs and len(of_n) == 2:
                name = (
                    f"{model}: {n} {'sequences' if what == 'parallel' else 'streams over HTTP'}, best / best"
                )
                found.append(Goal(name, ours / theirs, 1.2, 1.87))
    return found


def _second_gpu_goals(model: str, rows: Sequence[Row]) -> list[Goal]:
    speeds = {(r.what, r.n, r.mode): r.our_speed for r in rows if r.our_speed}
    found = []
    for what, mode, bounds in (("decode", "tp 2", (1.35, 1.7)), ("prefill", "layer 2", (1.85, 1.85))):
        sizes = [n for kind, n, where in speeds if kind == what and where == "one"]
        if sizes and (what, max(sizes), mode) in speeds:
            n = max(sizes)
            ratio = speeds[what, n, mode] / speeds[what, n, "one"]
            found.append(Goal(f"{model}: {what} {n}, our {mode} / our one GPU", ratio, *bounds))
    return found
