"""How large a model's file may be to be run on the devices that options name, before anything of the file is known.

A rule of thumb for choosing among quantisations: 85 % of what is free, the rest is for the cache and for results. What
really fits is worked out from the file itself once it is here.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyggml as gg

from .device_facts import free_bytes
from .load_options import LoadOptions

_SHARE = 0.85


@dataclass(frozen=True)
class Room:
    """The most bytes of a model, and in words where they are free."""

    n_bytes: int
    text: str


def room(options: LoadOptions) -> Room:
    """The room on the devices of these options, which may be more than ranks.

    Raises DeviceError and ConfigError for devices that are not there.
    """
    listed = [] if options.device is None else [gg.device(name) for name in options.device.split(",")]
    devices = list(dict.fromkeys(listed or options.devices()))
    reserve = options.reserve_on(devices)
    free = sum(max(0, free_bytes(device) - reserve.bytes_of(device.name)) for device in devices)
    names = ", ".join(device.name for device in devices)
    return Room(int(_SHARE * free), f"{free / 2**30:.1f} GiB free on {names}")
