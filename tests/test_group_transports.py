"""Groups hand their sums to native transports by size, tell their faults, and abort and free them."""

from __future__ import annotations

import numpy as np
import pytest
from fake_transport import FakeTransport

import pyggml as gg
from pyggml._ffi import lib


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
        small.join(group, 10, 20)
        large.join(group, 21, 90)
        assert sum_of_ones(group, n_elements) == (2 if taker == "host" else 1)
        assert small.sizes == ([n_elements] * 2 if taker == "small" else [])
        assert large.sizes == ([n_elements] * 2 if taker == "large" else [])
        assert small.n_polls == large.n_polls == 2
    assert small.n_frees == large.n_frees == 1


def test_a_transports_fault_ends_the_run_with_its_words_and_aborts_it() -> None:
    broken = FakeTransport("push: rank 0 waited 10 s for rank 1", lib.PG_FAULT_TIMEOUT)
    group = gg.Group(["cpu", "cpu"], threads=1, deadline_s=5)
    broken.join(group, 0)
    with pytest.raises(gg.ComputeError, match="push: rank 0 waited 10 s for rank 1"):
        sum_of_ones(group, 8)
    assert broken.n_aborts >= 1 and group.closed and broken.n_frees == 1
