"""Memory that is to stay free on each device, whatever else is there.

One number of MiB for all devices, or one for each in the order in which they were chosen; those left out at the end
keep nothing free. Of several numbers for one device the largest holds. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import ConfigError

MIB = 2**20
Asked = int | str | Sequence[int] | None


@dataclass(frozen=True)
class Reserve:
    """What is to stay free: of every device, or of those with these names. Units: MiB."""

    of_all: int = 0
    by_name: tuple[tuple[str, int], ...] = ()

    def bytes_of(self, name: str) -> int:
        """Bytes that stay free on the device of this name."""
        return MIB * dict(self.by_name).get(name, self.of_all)

    def setting(self, names: Sequence[str]) -> dict[str, str | int]:
        """The option that says the same for these devices in their order; nothing where it says nothing."""
        mib = [self.bytes_of(name) // MIB for name in names]
        if not any(mib):
            return {}
        return {"reserve": mib[0] if len(set(mib)) == 1 else ",".join(map(str, mib))}


NO_RESERVE = Reserve()


def read_reserve(asked: Asked) -> tuple[int, ...]:
    """The numbers of an option: one, several, or text with commas.

    Raises ConfigError for what is no list of whole numbers of at least 0.
    """
    if asked is None:
        return ()
    try:
        parts = asked.split(",") if isinstance(asked, str) else [asked] if isinstance(asked, int) else asked
        numbers = tuple(_whole(part) for part in parts)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers or min(numbers) < 0:
        raise ConfigError(f"reserve = {asked!r}; whole numbers of MiB are needed, such as 1024 or 1024,2048")
    return numbers


def _whole(part: object) -> int:
    if isinstance(part, bool) or not isinstance(part, (int, str, np.integer)):
        raise TypeError
    return int(part)


def reserve_on(asked: Asked, names: Sequence[str]) -> Reserve:
    """What an option keeps free of these devices; one number counts for every other device too.

    Raises ConfigError where it has more numbers than there are devices.
    """
    mib = read_reserve(asked)
    if len(mib) == 1:
        return Reserve(mib[0])
    if len(mib) > len(names):
        raise ConfigError(
            f"reserve = {','.join(map(str, mib))} has {len(mib)} numbers of MiB; there "
            f"{'is 1 device' if len(names) == 1 else f'are {len(names)} devices'} for them ({', '.join(names)}); "
            "one number counts for all"
        )
    largest: dict[str, int] = {}
    for name, number in zip(names, mib):
        largest[name] = max(number, largest.get(name, 0))
    return Reserve(0, tuple(largest.items()))


def reserved_notes(reserved: Mapping[str, int]) -> list[str]:
    """A line for each device that keeps memory free."""
    return [f"{name} keeps {n // MIB} MiB free" for name, n in reserved.items() if n]
