"""Replicas on paper: each one's arrangement, with memory divided where several lie on one device, and one context.

Planned together before the first of them loads, since each would find memory that another is about to take. On a CPU
the weights that stay in the mapped file are there once for all replicas. Reads no weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyggml as gg

from .arrangement import Arrangement, arrange, cache_facts
from .balance import DeviceFacts
from .demand import ModelFacts
from .device_facts import device_facts
from .errors import ConfigError
from .fit import placements
from .load_options import LoadOptions
from .loading import model_facts
from .model import Model
from .placement import Placements
from .weights import is_mapped, whole_parts


@dataclass(frozen=True)
class ReplicaPlan:
    """Every replica's arrangement; `n_ctx` is the context of one request on any of them."""

    facts: ModelFacts
    replicas: tuple[Arrangement, ...]

    @property
    def n_ctx(self) -> int:
        """The least of their contexts, so that a request fits wherever it goes."""
        return min(arranged.n_ctx for arranged in self.replicas)

    @property
    def options(self) -> tuple[LoadOptions, ...]:
        """The options to load each with."""
        return tuple(replace(arranged.options, ctx=self.n_ctx, fit=None) for arranged in self.replicas)

    @property
    def placements(self) -> tuple[Placements, ...]:
        """What would lie where, by replica."""
        return tuple(
            placements(self.facts, arranged.deal.demands, cache_facts(arranged.options, self.facts.hp), self.n_ctx)
            for arranged in self.replicas
        )


def plan_replicas(model: Model, options: Sequence[LoadOptions]) -> ReplicaPlan:
    """Arrange the model once for each of the options, which name their devices.

    Raises ConfigError with the number of a replica that does not fit, and what would.
    """
    facts = model_facts(model)
    devices = replica_devices(model, options)
    found = []
    for number, (own, at) in enumerate(zip(options, devices)):
        machine = {d.name: d for d in at}
        try:
            found.append(arrange(facts, own, at, lambda machine=machine: list(machine.values())))  # type: ignore[misc]
        except ConfigError as error:
            # Remedies repeat the replica's own devices, which are not the list that was asked for.
            said = str(error).replace(f"--device {own.device} ", "")
            raise ConfigError(f"replica {number} ({own.device}): {said}") from error
    return ReplicaPlan(facts, tuple(found))


def replica_devices(model: Model, options: Sequence[LoadOptions]) -> list[list[DeviceFacts]]:
    """The devices of each replica, each with the memory that is the replica's."""
    facts = model_facts(model)
    chosen = [own.devices() for own in options]
    n_users = Counter(card for devices in chosen for card in {d.bus_id or d.name for d in devices})
    shared = {d.name: _mapped_bytes(d, model) for devices in chosen for d in devices[:1] if len(devices) == 1}
    found = []
    for own, devices in zip(options, chosen):
        at = device_facts(devices, facts, cache_facts(own, facts.hp), own.reserve_on(devices))
        found.append([_divided(d, n_users[d.memory], shared.get(d.name, 0) if len(at) == 1 else 0) for d in at])
    return found


def _divided(device: DeviceFacts, n_users: int, shared_bytes: int) -> DeviceFacts:
    """A device with one replica's part of its free memory, of which `shared_bytes` are used by all."""
    shared = min(shared_bytes, device.free_bytes)
    return replace(device, free_bytes=(device.free_bytes - shared) // n_users + shared)


def _mapped_bytes(device: gg.Device, model: Model) -> int:
    """Bytes of weights that a CPU reads in the mapped file."""
    if device.kind != "cpu":
        return 0
    with gg.Backend(device, threads=1) as backend:
        return sum(part.n_bytes for part in whole_parts(model.weights) if is_mapped(backend, part))
