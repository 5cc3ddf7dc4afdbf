"""Where PCI devices sit: NUMA nodes, the width of their links, and what lies between two of them.

Read from Linux's sysfs; a machine that does not tell gives None or empty words. Classes have the
names that `nvidia-smi topo -m` uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CLASSES = {
    "same": "the same card",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the host bridge",
    "NODE": "host bridges of one NUMA node",
    "SYS": "the link between processors",
}


@dataclass(frozen=True)
class Seat:
    """Where a PCI device sits. `path` are the bridges from the root to it; widths are lanes."""

    bus_id: str
    numa_node: int | None
    path: tuple[str, ...]
    width: int | None = None
    max_width: int | None = None
    speed: str | None = None
    max_speed: str | None = None


def seat(bus_id: str | None, root: Path = Path("/")) -> Seat | None:
    """The seat of a device by its bus id; None where sysfs does not know it."""
    if bus_id is None:
        return None
    address = bus_id.split("-")[0].lower()
    folder = root / "sys/bus/pci/devices" / address
    if not folder.exists():
        return None
    path = tuple(part for part in folder.resolve().parts if ":" in part)
    node = _number(folder / "numa_node")
    return Seat(
        address,
        None if node is None or node < 0 else node,
        path,
        _number(folder / "current_link_width"),
        _number(folder / "max_link_width"),
        _text(folder / "current_link_speed"),
        _text(folder / "max_link_speed"),
    )


def between(a: Seat | None, b: Seat | None) -> str:
    """The class of what lies between two devices; "" where it is unknown."""
    if a is None or b is None:
        return ""
    if a.bus_id == b.bus_id:
        return "same"
    if a.path[:1] != b.path[:1]:
        return "NODE" if a.numa_node is not None and a.numa_node == b.numa_node else "SYS"
    shared = 0
    while a.path[shared : shared + 1] == b.path[shared : shared + 1]:
        shared += 1
    if shared < 2:
        return "PHB"
    # Below one switch each device has a port of the switch and itself left.
    return "PIX" if max(len(a.path), len(b.path)) - shared <= 2 else "PXB"


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
