"""Host memory that a card copies to and from by itself, while the host does something else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .backend import Backend
from .errors import AllocationError
from .lifetime import Lock

_ALIGNMENT = 64


def pinned_arrays(
    backend: Backend, arrays: Mapping[str, tuple[Sequence[int], Any]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays of zeros, by name with shape and numpy type, in memory pinned by the backend's device.

    Plain memory where the device pins none. It is freed after the last of the arrays, when nothing is in flight on the
    backend. Raises AllocationError.
    """
    offsets, n_bytes = {}, 0
    for name, (shape, kind) in arrays.items():
        offsets[name] = n_bytes
        n_bytes += -(-int(np.prod(shape)) * np.dtype(kind).itemsize // _ALIGNMENT) * _ALIGNMENT
    memory = np.frombuffer(_pinned(backend, max(n_bytes, 1)), np.uint8)
    memory[:] = 0
    return {
        name: np.ndarray(tuple(shape), kind, memory.data, offsets[name]) for name, (shape, kind) in arrays.items()
    }


def _pinned(backend: Backend, n_bytes: int) -> Any:
    kind = lib.ggml_backend_dev_host_buffer_type(backend.device.handle)
    if kind == ffi.NULL:
        return bytearray(n_bytes)
    buffer = lib.ggml_backend_buft_alloc_buffer(kind, n_bytes)
    if buffer == ffi.NULL:
        raise AllocationError(f"{backend.device.name}: no pinned host memory of {n_bytes} bytes")
    base = ffi.cast(f"char (*)[{n_bytes}]", lib.ggml_backend_buffer_get_base(buffer))
    return ffi.buffer(ffi.gc(base, _freeing(buffer, backend.lock)))


def _freeing(
    buffer: Any, lock: Lock, is_finalizing: Callable[[], bool] = sys.is_finalizing
) -> Callable[[Any], None]:
    def free(base: Any) -> None:
        if not is_finalizing():  # the driver may be gone by then
            lock.free(lambda: lib.ggml_backend_buffer_free(buffer))

    return free
