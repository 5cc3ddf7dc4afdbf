"""What several replicas say of themselves, as one: the facts of their model and the status of their engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SUMS = (
    "n_open", "n_running", "n_queued", "n_tokens_in_flight", "n_steps", "n_prefill_steps", "n_decode_steps",
    "n_prompt_tokens", "n_generated_tokens", "n_plans_built", "n_rebuilds", "native_s", "plan_s", "n_reduces",
    "reduce_s",
)  # fmt: skip


def joined_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of a model on several replicas, of which some may not have told theirs."""
    known = {number: of_one for number, of_one in enumerate(facts) if of_one}
    first = next(iter(known.values()))
    lines = [
        line if i else f"replica {number}: {line}"
        for number, of_one in known.items()
        for i, line in enumerate(of_one["plan_lines"])
    ]
    return {
        **first,
        "n_ctx": min(of_one["n_ctx"] for of_one in known.values()),
        "n_slots": sum(of_one["n_slots"] for of_one in known.values()),
        "notes": _notes(known),
        "plan_lines": lines,
        "plan": [
            {**rank, "replica": number, "rank": i}
            for number, of_one in known.items()
            for i, rank in enumerate(of_one["plan"])
        ],
    }


def _notes(known: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Every replica's notes; those that all have are told once."""
    of_all = [note for note in next(iter(known.values()))["notes"] if all(note in f["notes"] for f in known.values())]
    own = [f"replica {i}: {note}" for i, facts in known.items() for note in facts["notes"] if note not in of_all]
    return [*of_all, *own]


def place_of(facts: Mapping[str, Any]) -> str:
    """Where a replica lies, in one line."""
    return ", ".join(rank["device"] for rank in facts["plan"])


def joined_status(statuses: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The status of several engines, by replica, in the form of one."""
    first = next(iter(statuses.values()))
    states = [status["state"] for status in statuses.values()]
    faults = [f"replica {number}: {status['fault']}" for number, status in statuses.items() if status["fault"]]
    prefixes = [status["prefix"] for status in statuses.values()]
    return {
        **first,
        "state": "ready" if "ready" in states else states[0],
        "fault": "; ".join(faults) or None,
        "is_device_lost": all(status["is_device_lost"] for status in statuses.values()),
        **{name: _sum([status[name] for status in statuses.values()]) for name in SUMS},
        "prefix": {
            name: value if isinstance(value, bool) else _sum([prefix[name] for prefix in prefixes])
            for name, value in prefixes[0].items()
        },
        "transports": list(dict.fromkeys(name for status in statuses.values() for name in status["transports"])),
        **{
            name: [{**item, "replica": number} for number, status in statuses.items() for item in status[name]]
            for name in ("slots", "ranks")
        },
    }


def _sum(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
