"""Replicas, whole copies of a model that answer beside each other: the options of each from those of all.

The devices of the list are dealt in order, one group to each replica, and so are the numbers of `reserve`; processor
threads are divided among all CPU ranks. Names devices, opens none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyggml as gg

from .balance import check_n_ranks
from .errors import ConfigError
from .load_options import LoadOptions
from .reserve import Asked, read_reserve


def replica_options(options: LoadOptions, n_replicas: int) -> tuple[LoadOptions, ...]:
    """The options of each replica, with its own devices by name.

    Raises ConfigError where the devices are not one for each rank of each replica, DeviceError for a name.
    """
    if n_replicas == 1:
        return (options,)
    n_ranks = options.n_ranks
    check_n_ranks("tp" if options.tp else "layer-split", n_ranks)
    devices = _devices(options, n_replicas)
    n_cpu = sum(device.kind == "cpu" for device in devices)
    threads = options.threads or max(1, gg.default_threads() // max(1, n_cpu))
    reserves = _reserves(options.reserve, n_replicas, n_ranks)
    return tuple(
        replace(
            options, device=",".join(d.name for d in devices[i * n_ranks : (i + 1) * n_ranks]), threads=threads,
            reserve=reserves[i],
        )
        for i in range(n_replicas)
    )  # fmt: skip


def _devices(options: LoadOptions, n_replicas: int) -> Sequence[gg.Device]:
    """One device for each rank of each replica."""
    needed = n_replicas * options.n_ranks
    if options.device is not None:
        listed = [gg.device(name) for name in options.device.split(",")]
        if len(listed) != needed:
            raise ConfigError(
                f"--device {options.device} lists {_counted(len(listed), 'device')} for {_asked(options, n_replicas)}, "
                f"which {'need' if needed > 1 else 'needs'} {needed}; use {_works(options, n_replicas, listed)}"
            )
        return listed
    cards = gg.discrete_gpus()
    if len(cards) < needed:
        names = ", ".join(d.name for d in cards) or "none"
        fewer = len(cards) // options.n_ranks
        works = f"--dp {fewer} works, or list" if fewer else "list"
        raise ConfigError(
            f"{_asked(options, n_replicas)} need {needed} GPUs and this machine shows {len(cards)} ({names}); {works} "
            f"devices, which may come more than once, as in --device {','.join(['cpu'] * needed)}"
        )
    return cards[:needed]


def _asked(options: LoadOptions, n_replicas: int) -> str:
    if options.n_ranks == 1:
        return f"--dp {n_replicas}"
    return f"--dp {n_replicas} {'--tp' if options.tp else '--layer-split'} {options.n_ranks}"


def _works(options: LoadOptions, n_replicas: int, listed: Sequence[gg.Device]) -> str:
    """What a list of this length would do for."""
    n, n_ranks = len(listed), options.n_ranks
    needed = n_replicas * n_ranks
    if n == 1:
        return f"--device {','.join([listed[0].name] * needed)}"
    if n % n_ranks == 0:
        return f"--dp {n // n_ranks}"
    if n == n_replicas:
        return f"--dp {n_replicas} without --{'tp' if options.tp else 'layer-split'}"
    if n % n_replicas == 0:
        return f"--dp {n_replicas} with --tp {n // n_replicas} or --layer-split {n // n_replicas}"
    return f"a list of {needed}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _reserves(asked: Asked, n_replicas: int, n_ranks: int) -> list[Asked]:
    """What each replica keeps free: one number counts for all, several are dealt with the devices."""
    mib = read_reserve(asked)
    if len(mib) < 2:
        return [asked] * n_replicas
    if len(mib) > n_replicas * n_ranks:
        raise ConfigError(
            f"reserve = {','.join(map(str, mib))} has {len(mib)} numbers of MiB; {n_replicas} replicas have "
            f"{n_replicas * n_ranks} devices; one number counts for all"
        )
    padded = [*mib, *[0] * (n_replicas * n_ranks - len(mib))]
    return [padded[i * n_ranks : (i + 1) * n_ranks] for i in range(n_replicas)]
