"""Devices and the links between them put to the test: what arrives, what is how fast.

Nothing is taken on trust: copies are compared by content, speeds are measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pyggml as gg

from .measuring import Speed, copied, copy_seconds, device_speed, sums_by_transport

# An odd number of elements each, so that tails are tested too.
_PROVEN_ELEMENTS = (1027, 2**20 + 3)
_SMALL, _LARGE = 4096, 2**21


@dataclass(frozen=True)
class CopyTest:
    """Copies from one rank to another. `problem` is "" where every byte arrives; times are of 16 KiB and 8 MiB."""

    source: int
    target: int
    problem: str
    small_s: float | None = None
    large_s: float | None = None

    @property
    def bytes_per_s(self) -> float | None:
        """The rate of large copies."""
        return None if self.large_s is None else 4 * _LARGE / self.large_s


@dataclass
class Examination:
    """What was found. `speeds` and `faults` are by device; `sums` are seconds by elements, by transport."""

    names: list[str]
    speeds: dict[str, Speed] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    copies: list[CopyTest] = field(default_factory=list)
    sums: dict[str, dict[int, float]] = field(default_factory=dict)
    transports: dict[str, Any] = field(default_factory=dict)
    group_fault: str = ""

    @property
    def is_sound(self) -> bool:
        """Whether every device and every copy worked."""
        return not (self.faults or self.group_fault or any(c.problem for c in self.copies))


def examine(names: Sequence[str], *, threads: int | None = None, retest: bool = False) -> Examination:
    """Measure each device, then the links among those that work. Faults are findings and not raised."""
    found = Examination(list(names))
    for name in dict.fromkeys(names):
        try:
            found.speeds[name] = device_speed(name, threads=threads)
        except gg.PyggmlError as error:
            found.faults[name] = str(error)
    working = [name for name in names if name in found.speeds]
    if len(working) > 1:
        found.names = working
        try:
            with gg.Group(working, threads=threads, retest=retest) as group:
                _examine_links(found, group)
        except gg.PyggmlError as error:
            found.group_fault = str(error)
    return found


def _examine_links(found: Examination, group: gg.Group) -> None:
    found.transports = group.transports.as_dict()
    found.sums = sums_by_transport(group)
    ranks = range(group.n_ranks)
    found.copies = [_tested(group, a, b) for a in ranks for b in ranks if a != b]


def _tested(group: gg.Group, source: int, target: int) -> CopyTest:
    for n in _PROVEN_ELEMENTS:
        sent = np.random.default_rng(n + 31 * source + target).random(n, np.float32)
        n_wrong = int((copied(group, source, target, sent) != sent).sum())
        if n_wrong:
            return CopyTest(source, target, f"{n_wrong} of {n} numbers arrive wrong")
    return CopyTest(
        source,
        target,
        "",
        copy_seconds(group, source, target, _SMALL),
        copy_seconds(group, source, target, _LARGE),
    )
