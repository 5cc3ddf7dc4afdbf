"""What is wrong or worth knowing on this machine, a line each with what to do.

Reads what was examined; measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import pyggml as gg

from ..examination import Examination
from ..topology import Seat

_FULL = 0.9  # of a card's memory free is as it should be
# Reasons of transports that are no fault of the machine.
_EXPECTED = ("no CUDA card", "share a card", "needs none", "not needed", "is forced", "ranks; push is for")


class Finding(NamedTuple):
    """What is so, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def findings(
    devices: Sequence[gg.Device],
    seats: Mapping[str, Seat | None],
    free: Mapping[str, int],
    examined: Examination,
    *,
    root: Path = Path("/"),
) -> list[Finding]:
    """Everything that was found about these devices; seats and free bytes are by name."""
    found = [Finding(f"{name} does not work", problem) for name, problem in examined.faults.items()]
    if examined.group_fault:
        remedy = "use one of these devices alone, and send this report"
        found.append(Finding(f"the devices do not work together ({examined.group_fault})", remedy))
    for device in devices:
        found += _of_device(device, seats.get(device.name), free[device.name])
    found += _of_pairs(devices, seats)
    found += _of_links(examined)
    n_cards = len({d.bus_id for d in devices if d.kind == "gpu" and d.bus_id})
    if n_cards > 1 and any((root / "sys/class/iommu").glob("*")):
        remedy = "copies between PCIe cards may be slow or fail; boot with iommu=pt, and switch ACS off in the firmware"
        found.append(Finding("the IOMMU is on", remedy))
    return found


def _of_device(device: gg.Device, seat: Seat | None, free: int) -> list[Finding]:
    found = []
    if device.kind == "gpu" and free < _FULL * device.memory_total:
        gib = [n / 2**30 for n in (free, device.memory_total)]
        remedy = "end what holds the rest (nvidia-smi lists it), or name another with --device"
        found.append(Finding(f"{device.name} has {gib[0]:.1f} of {gib[1]:.1f} GiB free", remedy))
    if seat is not None and seat.width and seat.max_width and seat.width < seat.max_width:
        remedy = "seat the card anew, or use a slot that has all of them"
        found.append(Finding(f"{device.name} runs on {seat.width} of its {seat.max_width} PCIe lanes", remedy))
    return found


def _of_pairs(devices: Sequence[gg.Device], seats: Mapping[str, Seat | None]) -> list[Finding]:
    found = []
    for a, b in combinations(dict.fromkeys(d.name for d in devices), 2):
        x, y = seats.get(a), seats.get(b)
        if x is None or y is None or None in (x.numa_node, y.numa_node) or x.numa_node == y.numa_node:
            continue
        found.append(
            Finding(
                f"{a} and {b} are on NUMA nodes {x.numa_node} and {y.numa_node}",
                "what they exchange through host memory crosses processors; prefer cards of one node for --tp",
            )
        )
    return found


def _of_links(examined: Examination) -> list[Finding]:
    names = examined.names
    found = [
        Finding(f"{names[c.source]} to {names[c.target]}: {c.problem}", "do not use them together; send this report")
        for c in examined.copies
        if c.problem
    ]
    for pair in examined.transports.get("pairs", ()):
        if pair["problem"]:
            what = f"{names[pair['source']]} cannot reach {names[pair['target']]} directly ({pair['problem']})"
            found.append(Finding(what, "nothing to do: what they exchange takes another way, at the speed shown"))
    for row in examined.transports.get("transports", ()):
        if not row["passed"] and not any(words in row["reason"] for words in _EXPECTED):
            found.append(Finding(f"transport {row['name']} is not used", row["reason"]))
    return found
