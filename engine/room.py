"""How large a model's file may be to be run on the devices that options name, before anything of the file is known.

A rule of thumb for choosing among quantisations: 85 % of what is free, the rest is for the cache and for results. What
really fits is worked out from the file itself once it is here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyggml as gg

from .device_facts import free_bytes
from .load_options import LoadOptions
from .replica_options import replica_options

_SHARE = 0.85


@dataclass(frozen=True)
class Room:
    """The most bytes of a model, and in words where they are free."""

    n_bytes: int
    text: str


def room(options: LoadOptions, n_replicas: int = 1) -> Room:
    """The room on the devices of these options, which may be more than ranks; of several replicas that of the least.

    Raises DeviceError and ConfigError for devices that are not there.
    """
    groups = [(own, _devices(own)) for own in replica_options(options, n_replicas)]
    n_users = Counter(device.name for _, devices in groups for device in devices)
    free = [sum(_free_bytes(d, own, devices) // n_users[d.name] for d in devices) for own, devices in groups]
    least = min(range(n_replicas), key=free.__getitem__)
    names = ", ".join(device.name for device in groups[least][1])
    each = f" for each of {n_replicas} replicas" if n_replicas > 1 else ""
    return Room(int(_SHARE * free[least]), f"{free[least] / 2**30:.1f} GiB free on {names}{each}")


def _devices(options: LoadOptions) -> list[gg.Device]:
    listed = [] if options.device is None else [gg.device(name) for name in options.device.split(",")]
    return list(dict.fromkeys(listed or options.devices()))


def _free_bytes(device: gg.Device, options: LoadOptions, devices: list[gg.Device]) -> int:
    return max(0, free_bytes(device) - options.reserve_on(devices).bytes_of(device.name))
