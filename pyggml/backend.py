"""A backend: a stream of work on one device, with the buffer types of that device.

Graphs, buffers and allocators made from it stop working when it is closed. One thread at a time runs on a backend;
others wait.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._ffi import ffi, last_native_error, lib
from .device import Device, device
from .errors import DeviceError
from .lifetime import Closable, Lock
from .tensor import MATRIX_TYPES

if TYPE_CHECKING:
    from .dtypes import DType
    from .tensor import Tensor

MAX_THREADS = 512  # ggml's own limit
_TIME_LIMIT = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """The number of processors that this process may use, a container's limit of their time included."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n, _time_limit(), MAX_THREADS)


def _time_limit() -> int:
    """The processors whose time a container may use (`docker run --cpus 2`), rounded up.

    Source: the Linux kernel's cgroup-v2.rst, cpu.max: microseconds in each period, or `max`.
    """
    try:
        quota, period = _TIME_LIMIT.read_text().split()
        return max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):  # no such group, or no limit
        return MAX_THREADS


class Backend(Closable):
    """A stream of work on one device.

    `Backend("cuda:0")`, `Backend("cpu", threads=8)`; threads matter to the CPU only.
    Raises DeviceError when there is no such device or it cannot be opened.
    """

    def __init__(self, device_name: str | Device = "cpu", *, threads: int | None = None) -> None:
        if threads is not None and not 1 <= threads <= MAX_THREADS:
            raise DeviceError(f"threads = {threads}; 1 to {MAX_THREADS} are possible")
        self.device = device(device_name)
        self.threads = threads or default_threads()
        last_native_error()
        handle = lib.ggml_backend_dev_init(self.device.handle, ffi.NULL)
        if handle == ffi.NULL:
            raise DeviceError(
                f"device {self.device.name} cannot be opened: {last_native_error() or 'no reason given'}"
            )
        self._handle: Any = handle
        self._open(Lock())
        lib.pg_set_n_threads(handle, self.threads)

    @property
    def description(self) -> str:
        """What it is, for messages about its end."""
        return f"backend {self.device.name}"

    @property
    def handle(self) -> Any:
        """The C backend; raises ClosedError after close()."""
        self.check_open()
        return self._handle

    def buffer_types(self) -> list[Any]:
        """The device's buffer types, the ones with faster layouts first, its plain one last."""
        self.check_open()
        extra = ffi.new("ggml_backend_buffer_type_t[16]")
        n = lib.pg_extra_buffer_types(self.device.handle, extra, 16)
        return [*(extra[i] for i in range(n)), lib.ggml_backend_dev_buffer_type(self.device.handle)]

    def weight_buffer_type(self, shape: Sequence[int], kind: DType, *, experts: bool = False) -> Any:
        """The fastest buffer type for a weight that is only multiplied by.

        Matrices that lie one behind the other and are no experts, also where there is but one of them, get the plain
        one: what they multiply is seldom contiguous, which faster layouts (AMX) do not take.
        Raises DeviceError when the device cannot multiply by this type at all.
        """
        has_layout = experts or len(shape) == 2
        types = self.buffer_types() if has_layout else self.buffer_types()[-1:]
        at = self.first_that_multiplies(types, shape, kind, experts=experts)
        if at < 0:
            raise DeviceError(
                f"{self.device.name} cannot multiply by {kind.name} weights of shape {tuple(shape)}"
            )
        return types[at]

    def weight_bytes(self, shape: Sequence[int], kind: DType, *, experts: bool = False) -> int:
        """Bytes of a weight in its `weight_buffer_type`, maybe more than in a file; raises DeviceError as that does."""
        from .graph import Graph  # which needs this module first

        layout = self.weight_buffer_type(shape, kind, experts=experts)
        with Graph(self, max_nodes=4) as g:
            return int(lib.ggml_backend_buft_get_alloc_size(layout, g.phantom("weight", shape, kind).handle))

    def first_that_multiplies(
        self, types: Sequence[Any], shape: Sequence[int], kind: DType, *, experts: bool
    ) -> int:
        """The place of the first of these buffer types in which such a weight can be multiplied by; -1 if none."""
        if (
            kind.name not in MATRIX_TYPES
            or not 2 <= len(shape) <= 4
            or min(shape) < 1
            or shape[-1] % kind.block_size
        ):
            return -1
        candidates = ffi.new("ggml_backend_buffer_type_t[]", list(types))
        ne = ffi.new("int64_t[4]", [*reversed(shape), *[1] * (4 - len(shape))])
        return int(
            lib.pg_weight_buffer_type(self.device.handle, kind.id, ne, experts, candidates, len(types))
        )

    def supports(self, node: Tensor) -> bool:
        """Whether the device can compute this node of a graph."""
        self.check_open()
        if node.graph is not None:
            node.graph.check_open()
        return bool(lib.pg_supports(self.device.handle, node.handle))

    def synchronize(self) -> None:
        """Wait until all work that was started here is done."""
        lib.ggml_backend_synchronize(self.handle)

    def _release(self) -> None:
        lib.ggml_backend_synchronize(self._handle)
        lib.ggml_backend_free(self._handle)
        self._handle = None

    def __repr__(self) -> str:
        return f"Backend({self.device.name!r}{', closed' if self.closed else ''})"
