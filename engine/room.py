"""Whether a model fits on the devices that options name, before its weights are here.

The planner says so from the heads of the model's files, as it does before loading: with the context that is asked for,
else with one of 4096 tokens or the model's own. Where it cannot tell, as for an architecture that is not known, a model
fits that has at most 85 % of what is free. `python -m pyggml.engine.room` plans for a process that must not open
devices, since a card that was opened keeps memory for as long as the process lives; what is free is asked unopened.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyggml as gg

from .device_facts import free_bytes
from .errors import ConfigError
from .load_options import LoadOptions
from .loading import check_arrangement
from .model import Model
from .placement import MIN_CTX
from .replica_options import replica_options
from .replica_plan import plan_replicas

_SHARE = 0.85
_CTX = 4096


@dataclass(frozen=True)
class Room:
    """The devices for a model; `in_child` has the planner run in a process of its own."""

    options: LoadOptions
    n_replicas: int
    free_bytes: int
    text: str
    in_child: bool = False

    def is_enough(self, n_bytes: int) -> bool:
        """Whether a model of so many bytes fits, by its size alone."""
        return n_bytes <= _SHARE * self.free_bytes

    def hindrance(self, path: Path) -> str | None:
        """Why the model in this file does not fit, empty if it does; None where the planner cannot tell.

        The file needs no weights: what is behind its head is not read.
        """
        if not self.in_child:
            return _hindrance(path, self.options, self.n_replicas)
        asked = json.dumps({"path": str(path), "options": asdict(self.options), "n_replicas": self.n_replicas})
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=asked, stdout=subprocess.PIPE, text=True, check=False,
            start_new_session=True,  # Ctrl-C is for this process, which then ends the child
        )  # fmt: skip
        found: str | None = None if done.returncode else json.loads(done.stdout.splitlines()[-1])
        return found


def room(options: LoadOptions, n_replicas: int = 1, *, in_child: bool = False) -> Room:
    """The room on the devices of these options, which may be more than ranks; of several replicas that of the least.

    Raises DeviceError and ConfigError for devices that are not there.
    """
    groups = [(own, _devices(own)) for own in replica_options(options, n_replicas)]
    n_users = Counter(_memory(d) for _, devices in groups for d in devices)
    free = [sum(_free_bytes(d, own, devices) // n_users[_memory(d)] for d in devices) for own, devices in groups]
    least = min(range(n_replicas), key=free.__getitem__)
    names = ", ".join(device.name for device in groups[least][1])
    each = f" for each of {n_replicas} replicas" if n_replicas > 1 else ""
    return Room(options, n_replicas, free[least], f"{free[least] / 2**30:.1f} GiB free on {names}{each}", in_child)


def _memory(device: gg.Device) -> str:
    return device.bus_id or device.name  # a card may be a device of several backends


def _devices(options: LoadOptions) -> list[gg.Device]:
    listed = [] if options.device is None else [gg.device(name) for name in options.device.split(",")]
    return list(dict.fromkeys(listed or options.devices()))


def _free_bytes(device: gg.Device, options: LoadOptions, devices: list[gg.Device]) -> int:
    return max(0, free_bytes(device, opens=False) - options.reserve_on(devices).bytes_of(device.name))


def _hindrance(path: Path, options: LoadOptions, n_replicas: int) -> str | None:
    if options.n_ranks == 1 and n_replicas == 1 and "," in (options.device or ""):
        return None  # several devices and no mode: which will be taken is not settled yet
    try:
        with contextlib.closing(Model(path)) as model:
            ctx = options.ctx or max(MIN_CTX, min(_CTX, model.hparams.n_ctx_train))
            planned = replace(options, ctx=ctx, fit=None)
            if n_replicas > 1:
                plan_replicas(model, replica_options(planned, n_replicas))
            else:
                check_arrangement(model, planned)
    except ConfigError as error:
        return str(error)
    except gg.PyggmlError:
        return None
    return ""


def _main() -> None:
    given = sys.stdin.read()
    if not given:
        return  # who asked has ended
    asked = json.loads(given)
    options = LoadOptions(**asked["options"])
    print(json.dumps(_hindrance(Path(asked["path"]), options, asked["n_replicas"])))


if __name__ == "__main__":
    _main()
