"""An allocator: device memory for what graphs compute, shared by graphs that never run at the same time."""

from __future__ import annotations

from typing import Any

from ._ffi import last_native_error, lib
from .backend import Backend
from .errors import AllocationError
from .lifetime import Closable


class Allocator(Closable):
    """Memory for the intermediate results of one or more graphs of a backend.

    `generation` changes when the memory moved: graphs laid out before must be built anew. `in_flight` is the id() of
    the graph whose run was started and not waited for.
    """

    def __init__(self, backend: Backend) -> None:
        backend.check_open()
        self.backend = backend
        self.generation = 0
        self.in_flight: int | None = None
        self._handle: Any = lib.ggml_gallocr_new(lib.pg_result_buffer_type(backend.device.handle))
        self._open(backend.lock)

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device."""
        with self.lock:
            self.check_open()
            return int(lib.ggml_gallocr_get_buffer_size(self._handle, 0))

    def place(self, plan: Any, *, measure_only: bool = False) -> None:
        """Lay a native plan out, growing the memory if it must.

        Raises AllocationError; graphs laid out before are then stale.
        """
        call = lib.pg_plan_reserve if measure_only else lib.pg_plan_layout
        last_native_error()
        with self.lock:
            before = self.n_bytes
            is_placed = call(plan, self._handle)
            if self.n_bytes != before:
                self.generation += 1
        if not is_placed:
            reason = last_native_error()
            raise AllocationError(
                f"{self.backend.device.name}: no memory for a graph's results; "
                f"{self.backend.device.memory_free} bytes are free" + (f" ({reason})" if reason else "")
            )

    def _release(self) -> None:
        lib.ggml_gallocr_free(self._handle)
        self._handle = None
