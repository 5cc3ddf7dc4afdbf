"""The graphics cards that this machine shows, and the NVIDIA driver's state, read without any GPU library.

Cards come from the PCI tree of sysfs; a server's management controller and a virtual machine's screen are not GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from . import toolchain

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
DISPLAY_CLASS = "0x03"


@dataclass(frozen=True)
class Cards:
    """The vendors of the machine's cards, and what the NVIDIA driver offers (0 and () without one)."""

    vendors: frozenset[str]
    has_nvidia_driver: bool
    driver_cuda: tuple[int, int]
    compute_capabilities: tuple[str, ...]


def find(sys_root: Path = Path("/sys"), dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> Cards:
    """Return what this machine shows."""
    vendors = set()
    for device in (sys_root / "bus" / "pci" / "devices").glob("*"):
        vendor = VENDORS.get(_text(device / "vendor"))
        if vendor and _text(device / "class").startswith(DISPLAY_CLASS):
            vendors.add(vendor)
    has_driver = (
        (proc / "driver" / "nvidia" / "version").exists()
        or (dev / "nvidiactl").exists()
        or (dev / "dxg").exists()
    )
    smi = toolchain.which("nvidia-smi") if has_driver else None
    driver_cuda, capabilities = (0, 0), ()
    if smi:
        if match := re.search(r"CUDA Version:\s*(\d+)\.(\d+)", toolchain.output([smi])):
            driver_cuda = int(match[1]), int(match[2])
        answer = toolchain.output([smi, "--query-gpu=compute_cap", "--format=csv,noheader"])
        capabilities = tuple(sorted(set(re.findall(r"^(\d+)\.(\d+)$", answer, re.MULTILINE))))
    if capabilities:
        vendors.add("NVIDIA")
    return Cards(
        frozenset(vendors), has_driver, driver_cuda, tuple(major + minor for major, minor in capabilities)
    )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
