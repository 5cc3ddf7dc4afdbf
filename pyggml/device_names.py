"""What a user may call a device: its name, PCI address, UUID, interface or product; which devices a word fits.

Pure matching; knows nothing of drivers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import Device

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")
_UUID = re.compile(r"gpu-[0-9a-f-]{4,36}|[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LEAST_PRODUCT = 3  # letters; fewer fit too much


def fitting(wanted: str, everything: Sequence[Device]) -> list[Device]:
    """The devices that a word fits, each card once unless the word is an interface; the surest reading only."""
    wanted = wanted.strip().lower()
    if not wanted:
        return []
    for found in (
        [d for d in everything if wanted in (d.name, (d.bus_id or "").lower())],
        _by_address(wanted, everything),
        _by_uuid(wanted, everything),
        [d for d in everything if wanted == d.description.lower()],
    ):
        if found:
            return first_interfaces(found)
    of_interface = [d for d in everything if wanted == d.module]
    return of_interface or first_interfaces(_by_product(wanted, everything))


def _by_address(wanted: str, everything: Sequence[Device]) -> list[Device]:
    """The domain may be left out or have eight digits; an emulated card has its card's address and more."""
    address = _numbers(wanted)
    return [d for d in everything if address and address == _numbers((d.bus_id or "").lower().split("-v")[0])]


def _numbers(address: str) -> tuple[int, ...]:
    parts = _ADDRESS.fullmatch(address)
    return tuple(int(part or "0", 16) for part in parts.groups()) if parts else ()


def _by_uuid(wanted: str, everything: Sequence[Device]) -> list[Device]:
    """A whole UUID, or its beginning after `GPU-`."""
    if not _UUID.fullmatch(wanted):
        return []
    digits = _digits(wanted)
    return [d for d in everything if _digits(d.uuid or "").startswith(digits)]


def _digits(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-").replace("-", "")


def _by_product(wanted: str, everything: Sequence[Device]) -> list[Device]:
    if ":" in wanted or len(wanted) < _LEAST_PRODUCT:
        return []
    return [d for d in everything if wanted in d.description.lower()]


def first_interfaces(found: Sequence[Device]) -> list[Device]:
    """Each card once, by its first interface: CUDA before Vulkan, as devices() lists them."""
    cards: dict[str, Device] = {}
    for d in found:
        cards.setdefault((d.bus_id or d.name).lower(), d)
    named = {d.description for d in cards.values() if d.bus_id}
    return [d for d in cards.values() if d.bus_id or d.description not in named]


def shown(found: Sequence[Device]) -> str:
    """Devices told apart: name, product, address."""
    return ", ".join(f"{d.name} ({d.description}{f' at {d.bus_id}' if d.bus_id else ''})" for d in found)
