"""Groups hand their sums to native transports by size, tell their faults, and abort and free them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml._ffi import ffi, lib


class FakeTransport:
    """A native transport whose functions are Python's; it does not sum, which tells its sums from the host's."""

    def __init__(self, name: str, outcome: int = lib.PG_OK) -> None:
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
        return self.outcome

    def _poll(self, self_: Any, rank: int, backend: Any, deadline_s: float) -> int:
        self.n_polls += 1
        return 0

    def _abort(self, self_: Any) -> None:
        self.n_aborts += 1

    def _free(self, self_: Any) -> None:
        self.n_frees += 1


def sum_of_ones(group: gg.Group, n_elements: int) -> float:
    with group.compile(
        lambda g, rank: g.output("y", g.all_reduce(g.input("x", (1, n_elements)) * 1.0))
    ) as graph:
        return float(graph.run(x=np.ones((1, n_elements), "f4"))["y"][0, 0])


@pytest.mark.parametrize(
    ("n_elements", "taker"),
    [(9, "host"), (10, "small"), (20, "small"), (21, "large"), (90, "large"), (91, "host")],
)
def test_a_sum_goes_to_the_transport_of_its_size(n_elements: int, taker: str) -> None:
    small, large = FakeTransport("small"), FakeTransport("large")
    with gg.Group(["cpu", "cpu"], threads=1) as group:
        lib.pg_group_add_transport(group.handle, small.handle, 10, 20)
        lib.pg_group_add_transport(group.handle, large.handle, 21, 90)
        assert sum_of_ones(group, n_elements) == (2 if taker == "host" else 1)
        assert small.sizes == ([n_elements] * 2 if taker == "small" else [])
        assert large.sizes == ([n_elements] * 2 if taker == "large" else [])
        assert small.n_polls == large.n_polls == 2
    assert small.n_frees == large.n_frees == 1


def test_a_transports_fault_ends_the_run_with_its_words_and_aborts_it() -> None:
    broken = FakeTransport("push: rank 0 waited 10 s for rank 1", lib.PG_FAULT_TIMEOUT)
    group = gg.Group(["cpu", "cpu"], threads=1, deadline_s=5)
    lib.pg_group_add_transport(group.handle, broken.handle, 0, 2**63 - 1)
    with pytest.raises(gg.ComputeError, match="push: rank 0 waited 10 s for rank 1"):
        sum_of_ones(group, 8)
    assert broken.n_aborts >= 1 and group.closed and broken.n_frees == 1
