"""What `pyggml bench` shows beside speeds: the most expensive kernels of a step, sums over ranks, recorded launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..step_profile import StepProfile
from .table import render
from .units import shown_count, shown_fine_seconds

MAX_SHOWN = 10
_WAYS = {
    "kernels": "kernels as CUPTI saw them",
    "nodes": "nodes run one by one on each rank, without fusion and without sums over ranks",
}


def document(profile: StepProfile) -> dict[str, Any]:
    """A profile for JSON, with its most expensive works and what share of all work they have."""
    total = profile.total_s or 1.0
    return {
        "phase": "decode" if profile.n_tokens == 1 else "prefill", "n_tokens": profile.n_tokens,
        "parallel": profile.n_seq, "n_kv": profile.n_kv, "step_s": profile.step_s, "work_s": profile.total_s,
        "way": profile.way, "why": profile.why,
        "works": [{**asdict(work), "share": work.seconds / total} for work in profile.works[:MAX_SHOWN]],
    }  # fmt: skip


def profile_lines(found: Mapping[str, Any]) -> list[str]:
    """A profile as text: what a step is, and a table of its most expensive works."""
    step = (
        shown_count(found["parallel"], "sequence")
        if found["phase"] == "decode"
        else f"{found['n_tokens']} tokens"
    )
    head = (
        f"{found['phase']} step of {step} in a window of {found['n_kv']}: {shown_fine_seconds(found['step_s'])}; "
        f"{_WAYS[found['way']]}: {shown_fine_seconds(found['work_s'])}"
    )
    rows = [
        (f"{1e6 * work['seconds']:.1f}", f"{100 * work['share']:.1f} %", work["count"],
         f"{1e6 * work['seconds'] / max(work['count'], 1):.1f}", work["name"])
        for work in found["works"]
    ]  # fmt: skip
    table = render(rows, header=("us", "share", "count", "us each", "work"), right=(0, 1, 2, 3))
    return [head, *([f"(no kernels: {found['why']})"] if found["why"] else []), *table.splitlines()]


def sums_lines(sums: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Times of a sum over the ranks, a line a transport; nothing for a single rank."""
    if not sums:
        return []
    sizes = sorted({n for times in sums.values() for n in times})
    rows = [
        (name, *(shown_fine_seconds(times[n]) if n in times else "" for n in sizes))
        for name, times in sums.items()
    ]
    header = ("sum over ranks", *(f"{n} numbers" for n in sizes))
    return render(rows, header=header, right=range(1, len(header))).splitlines()


def replay_line(replays: Mapping[str, int]) -> str:
    """What becomes of the launches of decode steps."""
    if set(replays) <= {"off"}:
        return "launches of decode steps are not recorded"
    words = {"off": "not to be recorded", "waiting": "not used often enough"}
    parts = (f"{n} {words.get(state, state)}" for state, n in replays.items())
    return f"decode plans by their launches: {', '.join(parts)}"
