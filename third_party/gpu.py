"""The graphics cards that this machine shows, and what the NVIDIA driver says of its own.

Cards come from the PCI tree of sysfs (a server's management controller and a virtual machine's screen are not
GPUs), the driver is asked through libcuda, which needs no toolkit.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
DISPLAY_CLASS = "0x03"
NVIDIA_FILES = ("driver/nvidia/version", "nvidiactl", "dxg")
COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Cards:
    """The vendors of the machine's cards, and the NVIDIA driver: its CUDA version and its cards' capabilities.

    `driver_cuda` is (0, 0) where no driver can be used.
    """

    vendors: frozenset[str]
    driver_cuda: tuple[int, int] = (0, 0)
    compute_capabilities: tuple[str, ...] = ()


def find(sys_root: Path = Path("/sys"), dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> Cards:
    """Return what this machine shows."""
    vendors = set()
    for device in (sys_root / "bus" / "pci" / "devices").glob("*"):
        vendor = VENDORS.get(_text(device / "vendor"))
        if vendor and _text(device / "class").startswith(DISPLAY_CLASS):
            vendors.add(vendor)
    if any((folder / name).exists() for folder in (proc, dev) for name in NVIDIA_FILES):
        vendors.add("NVIDIA")
    if "NVIDIA" not in vendors:
        return Cards(frozenset(vendors))
    return Cards(frozenset(vendors), *_ask_driver())


def _ask_driver() -> tuple[tuple[int, int], tuple[str, ...]]:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (0, 0), ()
    number, major, minor = ctypes.c_int(0), ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDriverGetVersion(ctypes.byref(number)):
        return (0, 0), ()
    served = number.value // 1000, number.value % 1000 // 10
    driver.cuDeviceGetCount(ctypes.byref(number))
    capabilities = set()
    for device in range(number.value):
        driver.cuDeviceGetAttribute(ctypes.byref(major), COMPUTE_CAPABILITY_MAJOR, device)
        driver.cuDeviceGetAttribute(ctypes.byref(minor), COMPUTE_CAPABILITY_MINOR, device)
        capabilities.add(10 * major.value + minor.value)
    return served, tuple(map(str, sorted(capabilities)))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
