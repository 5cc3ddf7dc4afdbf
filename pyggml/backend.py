"""A backend: a stream of work on one device, with the buffer types of that device.

Owned by whoever made it; graphs and buffers made from it must be closed first. Not thread-safe:
one thread uses a backend at a time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._ffi import ffi, last_native_error, lib
from .device import Device, device
from .errors import ClosedError, DeviceError

if TYPE_CHECKING:
    from .dtypes import DType
    from .tensor import Tensor


def default_threads() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Backend:
    """A stream of work on one device.

    `Backend("cuda:0")`, `Backend("cpu", threads=8)`; threads matter to the CPU only.
    Raises DeviceError when there is no such device or it cannot be opened.
    """

    def __init__(self, device_name: str | Device = "cpu", *, threads: int | None = None) -> None:
        if threads is not None and threads < 1:
            raise DeviceError(f"threads = {threads}; at least 1 is needed")
        self.device = device(device_name)
        self.threads = threads or default_threads()
        handle = lib.ggml_backend_dev_init(self.device.handle, ffi.NULL)
        if handle == ffi.NULL:
            raise DeviceError(f"device {self.device.name} cannot be opened: {last_native_error() or 'no reason given'}")
        self._handle: Any = handle
        lib.pg_set_n_threads(handle, self.threads)

    @property
    def handle(self) -> Any:
        """The C backend; raises ClosedError after close()."""
        if self._handle is None:
            raise ClosedError(f"backend {self.device.name} is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._handle is None

    def buffer_types(self) -> list[Any]:
        """The device's buffer types, the ones with faster layouts first, its plain one last."""
        extra = ffi.new("ggml_backend_buffer_type_t[16]")
        n = lib.pg_extra_buffer_types(self.device.handle, extra, 16)
        return [*(extra[i] for i in range(n)), lib.ggml_backend_dev_buffer_type(self.device.handle)]

    def weight_buffer_type(self, shape: Sequence[int], kind: DType, *, experts: bool = False) -> Any:
        """The fastest buffer type for a weight that is only multiplied by.

        Raises DeviceError when the device cannot multiply by this type at all.
        """
        types = self.buffer_types()
        candidates = ffi.new("ggml_backend_buffer_type_t[]", types)
        ne = ffi.new("int64_t[4]", [*reversed(shape), *[1] * (4 - len(shape))])
        at = lib.pg_weight_buffer_type(self.device.handle, kind.id, ne, experts, candidates, len(types))
        if at < 0:
            raise DeviceError(f"{self.device.name} cannot multiply by {kind.name} weights of shape {tuple(shape)}")
        return types[at]

    def supports(self, node: Tensor) -> bool:
        """Whether the device can compute this node of a graph."""
        return bool(lib.ggml_backend_dev_supports_op(self.device.handle, node.handle))

    def synchronize(self) -> None:
        """Wait until all work that was started here is done."""
        lib.ggml_backend_synchronize(self.handle)

    def close(self) -> None:
        """End the backend. Closing twice is allowed."""
        if self._handle is not None:
            lib.ggml_backend_free(self._handle)
            self._handle = None

    def __enter__(self) -> Backend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Backend({self.device.name!r}{', closed' if self.closed else ''})"
