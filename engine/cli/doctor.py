"""`pyggml doctor`: devices, build and links put to the test, what is wrong and what to do about it."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyggml as gg

from ..device_facts import free_bytes
from ..errors import ConfigError
from ..examination import CopyTest, Examination, examine
from ..topology import Seat, between, seat
from .doctor_report import report_lines
from .findings import findings
from .loading import named_devices
from .overview import version
from .settings import Settings
from .terminal import say
from .unused_gpus import build_facts, unused_gpus

_OF_INTEREST = ("PYGGML_", "GGML_", "CUDA_", "NCCL_", "OMP_", "GOMP_", "NVIDIA_VISIBLE_DEVICES", "VK_")
_BUILD = ("lock", "backends", "compiler", "cpu", "cuda", "vulkan", "warnings")
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def doctor(settings: Settings) -> int:
    """Print what was found, with --report also into a file; the status is 1 where a device or a link fails."""
    environ = environment(os.environ)  # before devices are looked for, which sets variables of its own
    devices = _devices(settings)
    if not settings["json"]:
        say(f"examining {', '.join(d.name for d in devices)} ...")
    examined = examine([d.name for d in devices], threads=settings["threads"], retest=settings["retest"])
    document = _document(devices, examined, environ)
    lines = list(report_lines(document))
    if settings["report"] is not None:
        _write(settings, document, lines)
    print(json.dumps(document, ensure_ascii=False) if settings["json"] else "\n".join(lines))
    return 0 if examined.is_sound else 1


def _devices(settings: Settings) -> list[gg.Device]:
    """Those that were named, else all GPUs, else the CPU twice, so that there is a link."""
    if settings["device"] is None:
        return gg.discrete_gpus() or [gg.device("cpu")] * 2
    return named_devices(settings)


def _document(devices: list[gg.Device], examined: Examination, environ: Mapping[str, str]) -> dict[str, Any]:
    everything = gg.devices()
    seats = {d.name: seat(d.bus_id) for d in everything}
    free = {d.name: free_bytes(d) for d in everything}
    facts, problems = build_facts(), gg.module_problems()
    unused = unused_gpus(everything, problems, facts)
    found = [f"module {p.module} is not loaded: {p.problem}" for p in problems]
    found += [*unused, *map(str, findings(devices, seats, free, examined))]
    return {
        "pyggml": version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "driver": _first_line(Path("/proc/driver/nvidia/version")),
        "threads": gg.default_threads(),
        "build": {name: facts.get(name) for name in _BUILD},
        "environment": environ,
        "devices": [_device(d, seats[d.name], free[d.name], examined) for d in everything],
        "copies": [_copy(c, seats, examined) for c in examined.copies],
        "sums": examined.sums,
        "transports": examined.transports,
        "ranks": examined.names,
        "findings": found,
    }


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what this program does; what may be secret is left out."""
    return {
        name: value
        for name, value in sorted(environ.items())
        if name.startswith(_OF_INTEREST) and not any(word in name for word in _SECRET)
    }


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def _device(device: gg.Device, at: Seat | None, free: int, examined: Examination) -> dict[str, Any]:
    speed = examined.speeds.get(device.name)
    return {
        "name": device.name,
        "kind": device.kind,
        "description": device.description,
        "memory_total_bytes": device.memory_total,
        "memory_free_bytes": free,
        "bus_id": device.bus_id,
        "seat": None if at is None else asdict(at),
        "speed": None if speed is None else asdict(speed),
    }


def _copy(c: CopyTest, seats: Mapping[str, Seat | None], examined: Examination) -> dict[str, Any]:
    source, target = examined.names[c.source], examined.names[c.target]
    return {
        **asdict(c),
        "bytes_per_s": c.bytes_per_s,
        "from": source,
        "to": target,
        "between": between(seats[source], seats[target]),
    }


def _write(settings: Settings, document: dict[str, Any], lines: list[str]) -> None:
    path = Path(settings["report"]).expanduser()
    if path.suffix == ".json":
        text = json.dumps(document, ensure_ascii=False, indent=1)
    else:
        text = "\n".join(["# pyggml doctor", "", "```text", *lines, "```"])
    try:
        path.write_text(text + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{settings.source('report')} {path}: {error.strerror or error}") from error
