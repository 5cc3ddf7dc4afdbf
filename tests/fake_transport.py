"""A transport for groups of CPU ranks that counts what it is asked for, and can hold a run up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyggml._ffi import ffi, lib


class FakeTransport:
    """A native transport whose functions are Python's; it does not sum, which tells its sums from the host's.

    `during(rank)` is called on the rank's thread while a sum is under way.
    """

    def __init__(
        self, name: str, outcome: int = lib.PG_OK, during: Callable[[int], object] = lambda rank: None
    ) -> None:
        self.during = during
        self.sizes: list[int] = []
        self.n_polls = self.n_aborts = self.n_frees = 0
        self._kept = [
            ffi.new("char[]", name.encode()),
            ffi.callback("int(void *, int, ggml_backend_t, struct ggml_tensor *)", self._all_reduce),
            ffi.callback("int(void *, int, ggml_backend_t, double)", self._poll),
            ffi.callback("void(void *)", self._abort),
            ffi.callback("void(void *)", self._free),
        ]
        self.outcome = outcome
        self.handle = ffi.new("pg_transport *")
        self.handle.name, self.handle.all_reduce, self.handle.poll, self.handle.abort, self.handle.free = (
            self._kept
        )

    def _all_reduce(self, self_: Any, rank: int, backend: Any, tensor: Any) -> int:
        self.sizes.append(int(lib.ggml_nelements(tensor)))
        self.during(rank)
        return self.outcome

    def _poll(self, self_: Any, rank: int, backend: Any, deadline_s: float) -> int:
        self.n_polls += 1
        return 0

    def _abort(self, self_: Any) -> None:
        self.n_aborts += 1

    def _free(self, self_: Any) -> None:
        self.n_frees += 1

    def join(self, group: Any, min_elements: int, max_elements: int = 2**63 - 1) -> FakeTransport:
        """Give a group's sums of these sizes to this transport."""
        lib.pg_group_add_transport(group.handle, self.handle, min_elements, max_elements)
        return self
