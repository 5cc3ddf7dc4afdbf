"""GPUs that the machine shows and this build or its driver cannot use, each as one line with the remedy.

Cards are read from sysfs and the NVIDIA driver's device files, so that a missing driver is noticed too.
A card that CUDA_VISIBLE_DEVICES hides on purpose is not missed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyggml as gg

_VENDORS = {"0x10de": "NVIDIA", "0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY_CLASS = "0x03"
_DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")
_NO_DRIVER = (
    "its driver is not loaded: sudo apt install nvidia-driver and reboot (a container needs --gpus all)"
)


def build_facts() -> dict[str, Any]:
    """What this build of ggml has, from its build.json; empty without one."""
    try:
        facts: dict[str, Any] = json.loads((Path(gg.__file__).parent / "_lib" / "build.json").read_text())
    except FileNotFoundError:
        return {}
    return facts


def shown_vendors(root: Path) -> set[str]:
    """The makers of the graphics cards on the PCI bus, and NVIDIA where its driver is."""
    found = {"NVIDIA"} if has_nvidia_driver(root) else set()
    for card in (root / "sys/bus/pci/devices").glob("*"):
        vendor = _VENDORS.get(_content(card / "vendor"))
        if vendor and _content(card / "class").startswith(_DISPLAY_CLASS):
            found.add(vendor)
    return found


def has_nvidia_driver(root: Path) -> bool:
    """Whether NVIDIA's driver is loaded."""
    return any((root / name).exists() for name in _DRIVER_FILES)


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def unused_gpus(
    devices: Sequence[gg.Device],
    problems: Sequence[gg.ModuleProblem],
    facts: Mapping[str, Any],
    *,
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
) -> list[str]:
    """One line for each maker's cards that stay unused."""
    vendors = shown_vendors(root)
    modules = {device.module for device in devices}
    is_hidden = environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    lines = []
    if "NVIDIA" in vendors and "cuda" not in modules and not is_hidden:
        lines.append(f"NVIDIA GPU not usable: {_cuda_obstacle(problems, facts, has_nvidia_driver(root))}")
    others = sorted(vendors - {"NVIDIA"})
    if others and not any(device.kind in ("gpu", "igpu") for device in devices):
        lines.append(f"{' and '.join(others)} GPU not usable: {_vulkan_obstacle(problems, facts)}")
    return lines


def _cuda_obstacle(problems: Sequence[gg.ModuleProblem], facts: Mapping[str, Any], has_driver: bool) -> str:
    if not has_driver:
        return _NO_DRIVER
    problem = next((p.problem for p in problems if p.module == "cuda"), None)
    if problem is not None:
        return f"{problem}; {_remedy(problem)}"
    if "cuda" in facts.get("backends", ()):
        return "the driver shows no device to this process; see what nvidia-smi says"
    said = next((w for w in facts.get("warnings", ()) if w.startswith("NVIDIA")), None)
    return (
        f"this build has no CUDA ({said})"
        if said
        else "this build has no CUDA; build it with: " + _build("cuda")
    )


def _remedy(problem: str) -> str:
    library = re.search(r"lib(cuda|cublas|cublasLt|cudart)\.so\.(\d+)", problem)
    if library is None:
        return "build again with: " + _build("cuda")
    if library[1] == "cuda":
        return "the driver's library is missing: sudo apt install libcuda1 (a container needs --gpus all)"
    wheel = {"cudart": "cuda-runtime"}.get(library[1], "cublas")
    return f"pip install nvidia-{wheel}{'-cu12' if library[2] == '12' else ''}"


def _vulkan_obstacle(problems: Sequence[gg.ModuleProblem], facts: Mapping[str, Any]) -> str:
    problem = next((p.problem for p in problems if p.module == "vulkan"), None)
    if problem is not None:
        return f"{problem}; sudo apt install libvulkan1 mesa-vulkan-drivers"
    if "vulkan" in facts.get("backends", ()):
        return "no Vulkan driver for it; sudo apt install mesa-vulkan-drivers"
    return "this build has no Vulkan; build it with: " + _build("vulkan")


def _build(backend: str) -> str:
    return f"python build_ggml.py --backends cpu,{backend} --install"
