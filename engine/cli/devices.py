"""`pyggml devices`: what this machine can compute on, which device is the default, and why others are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyggml as gg

from .settings import Settings
from .table import render
from .terminal import one_line, say
from .units import shown_bytes
from .unused_gpus import build_facts, unused_gpus


def why_not(device: gg.Device, default: gg.Device, everything: Sequence[gg.Device]) -> str:
    """Why a device is not the default; empty for the one that is."""
    if device.name == default.name:
        return ""
    if device.kind == "gpu":
        same_card = [d for d in everything if d.bus_id and d.bus_id == device.bus_id and d.kind == "gpu"]
        if same_card and same_card[0].name != device.name:
            return f"same card as {same_card[0].name}"
        return f"less free memory than {default.name}"
    reasons = {"software": "software renderer", "igpu": "integrated", "cpu": "there is a GPU"}
    return reasons.get(device.kind, "not a GPU")


def devices(settings: Settings) -> int:
    """Print the devices."""
    everything, default = gg.devices(), gg.default_device()
    facts, problems = build_facts(), gg.module_problems()
    unused = unused_gpus(everything, problems, facts)
    if settings["json"]:
        print(json.dumps(_document(everything, default, problems, unused, facts), ensure_ascii=False))
        return 0
    rows = []
    for d in everything:
        note = "default" if d.name == default.name else why_not(d, default, everything)
        total, free = d.memory_total, d.memory_free_unopened
        rows.append(
            (
                d.name,
                d.kind,
                one_line(d.description),
                d.bus_id or "-",
                shown_bytes(free),
                shown_bytes(total),
                note,
            )
        )
    print(render(rows, header=("name", "kind", "description", "bus id", "free", "total", ""), right=(4, 5)))
    for problem in problems:
        print(f"module {problem.module} is not loaded: {one_line(problem.problem)}")
    for line in unused:
        say(f"pyggml devices: {one_line(line)}")
    return 0


def _document(
    everything: Sequence[gg.Device],
    default: gg.Device,
    problems: Sequence[gg.ModuleProblem],
    unused: Sequence[str],
    facts: dict[str, Any],
) -> dict[str, Any]:
    return {
        "devices": [
            {
                "name": d.name,
                "kind": d.kind,
                "description": d.description,
                "bus_id": d.bus_id,
                "uuid": d.uuid,
                "memory_free_bytes": d.memory_free_unopened,
                "memory_total_bytes": d.memory_total,
                "is_default": d.name == default.name,
                "why_not_default": why_not(d, default, everything) or None,
            }
            for d in everything
        ],
        "module_problems": [{"module": p.module, "problem": p.problem} for p in problems],
        "unused_gpus": list(unused),
        "build": {"backends": facts.get("backends", []), "ggml": facts.get("lock")},
    }
