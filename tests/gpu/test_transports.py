"""Transports between real CUDA cards: content, sums, replays, faults that must not hang. Needs two cards or more.

`pytest tests/gpu/test_transports.py`; `python tests/gpu/time_transports.py` prints the timings.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml import nccl
from pyggml._ffi import ffi, lib
from pyggml.cuda_links import PUSHES, CudaLinks, attach, host_seconds
from pyggml.errors import DeviceError
from pyggml.peers import prove_pairs
from pyggml.transport import choose

CARDS = [d.name for d in gg.devices() if d.module == "cuda" and "-v" not in str(d.bus_id)]
pytestmark = pytest.mark.skipif(len(CARDS) < 2, reason="fewer than two CUDA cards")
SIZES = (1, 2, 5, 127, 1024, 4096, 4099, 65536, 131075, 2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20 + 7)
RNG = np.random.default_rng(3)


@pytest.fixture
def group() -> Iterator[gg.Group]:
    with gg.Group(CARDS[:2]) as made:
        yield made


def links_of(group: gg.Group, wait_s: float = 20.0) -> CudaLinks:
    return CudaLinks(group.backends, lambda n: host_seconds(group, n), wait_s=wait_s)


def tensor_on(backend: gg.Backend, n_elements: int) -> tuple[gg.Graph, Any]:
    graph = gg.Graph(backend)
    return graph, graph.weight(np.ones((1, n_elements), np.float32)).handle


def test_bytes_arrive_both_ways_by_copies_and_by_stores(group: gg.Group) -> None:
    proofs = prove_pairs(links_of(group), 10.0)
    assert len(proofs) == 2 and all(proof.passed for proof in proofs), proofs


def test_peers_can_be_closed_and_opened_again(group: gg.Group) -> None:
    links = links_of(group)
    for _ in range(2):
        assert links.enable_peer(0, 1) is None and links.enable_peer(0, 1) is None
        links.disable_peer(0, 1)
        links.disable_peer(0, 1)


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", ["push", "push-shm", "nccl"])
def test_sums_are_right_in_every_size_and_alignment(name: str, kind: str, group: gg.Group) -> None:
    links = links_of(group)
    links.open(name)
    made, reason = links.take(name), ffi.new("char[400]")
    try:
        for n_elements in SIZES:
            for offset in (0, 1, 2, 3):
                ok = links._api.check(
                    made, 2, links._handles, n_elements, offset, gg.dtype(kind).id, name in PUSHES, 10.0, reason, 400
                )
                assert ok, f"{n_elements} at {offset}: {ffi.string(reason).decode()}"
    finally:
        made.free(made.self)


@pytest.mark.parametrize("place", ["apart", "in x", "in addend"])
@pytest.mark.parametrize("n", [4, 4096, 65535, 65536, 300001])
@pytest.mark.parametrize("name", PUSHES)
def test_push_adds_what_only_one_rank_has_to_the_sum(name: str, n: int, place: str, group: gg.Group) -> None:
    links = links_of(group)
    links.open(name)
    made = links.take(name)
    x, addend = (RNG.standard_normal((2, 1, n)).astype(np.float32) for _ in range(2))
    graphs = [gg.Graph(backend) for backend in group.backends]
    tensors = [[g.weight(table) for table in (x[i], addend[i], 0 * x[i])] for i, g in enumerate(graphs)]

    def sum_up(rank: int) -> np.ndarray:
        ours, added, apart = (tensor.handle for tensor in tensors[rank])
        out = {"apart": apart, "in x": ours, "in addend": added}[place]
        links._api.sum_with(added, out, False)
        assert made.all_reduce(made.self, rank, links._handles[rank], ours) == lib.PG_OK
        assert made.poll(made.self, rank, links._handles[rank], 10.0) == lib.PG_OK
        found = np.empty(n, np.float32)
        lib.ggml_backend_tensor_get(out, ffi.from_buffer(found), 0, found.nbytes)
        return found

    with ThreadPoolExecutor(2) as threads:
        for _ in range(3 if place == "apart" else 1):  # x and addend stay as they are
            for rank, found in enumerate(threads.map(sum_up, range(2))):
                assert np.array_equal(found, x[0, 0] + x[1, 0] + addend[rank, 0])
    made.free(made.self)
    for graph in graphs:
        graph.close()


@pytest.mark.parametrize("name", ["push", "push-shm", "nccl"])
def test_a_captured_graph_replays_and_sums_stay_right_after_it(name: str, group: gg.Group) -> None:
    links = links_of(group)
    links.open(name)
    reason = ffi.new("char[400]")
    for n_elements in (4096, 65537):
        assert 0 < links.seconds(name, n_elements) < 0.01
        made = links._transports[name]
        ok = links._api.check(
            made, 2, links._handles, n_elements, 0, gg.dtype("f32").id, name in PUSHES, 10.0, reason, 400
        )
        assert ok, ffi.string(reason).decode()
    links.close()


@pytest.mark.parametrize("n", [4096, 70000])  # as letters, in parts
@pytest.mark.parametrize("name", ["push", "push-shm", "nccl"])
def test_a_rank_that_never_comes_is_a_timeout_and_leaves_the_cards_usable(name: str, n: int, group: gg.Group) -> None:
    links = links_of(group, wait_s=1.0)
    links.open(name)
    made = links.take(name)
    backend = group.backends[0]
    graph, tensor = tensor_on(backend, n)
    start = time.monotonic()
    assert made.all_reduce(made.self, 0, backend.handle, tensor) == lib.PG_OK
    assert made.poll(made.self, 0, backend.handle, 3.0) == lib.PG_FAULT_TIMEOUT
    assert time.monotonic() - start < 10
    assert ffi.string(made.name).decode().startswith(f"{name}: rank 0 ")
    made.abort(made.self)
    assert made.all_reduce(made.self, 1, group.backends[1].handle, tensor) == lib.PG_FAULT_CLOSED
    made.free(made.self)
    assert time.monotonic() - start < 30
    graph.close()
    again = links_of(group)
    again.open("push")
    again.close()


@pytest.mark.parametrize("n", [4096, 70000])
@pytest.mark.parametrize("name", PUSHES)
def test_an_abort_ends_a_sum_that_waits(name: str, n: int, group: gg.Group) -> None:
    links = links_of(group, wait_s=60.0)
    links.open(name)
    made = links.take(name)
    backend = group.backends[1]
    graph, tensor = tensor_on(backend, n)
    assert made.all_reduce(made.self, 1, backend.handle, tensor) == lib.PG_OK
    start = time.monotonic()
    made.abort(made.self)
    assert made.poll(made.self, 1, backend.handle, 20.0) == lib.PG_FAULT_CLOSED
    assert time.monotonic() - start < 5
    made.free(made.self)
    graph.close()


@pytest.mark.parametrize("name", ["push", "push-shm", "nccl", None])
@pytest.mark.parametrize("n", [4096, 300000])
def test_a_group_sums_as_through_host_memory(
    name: str | None, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [RNG.standard_normal((1, n)).astype("f4") for _ in range(2)]

    def chain(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (1, n))
        for _ in range(3):
            x = g.all_reduce(x * 0.75)
        g.output("y", x)

    results = []
    for transport in ("host", name):
        with gg.Group(CARDS[:2]) as group:
            report = attach(group, transport=transport)
            assert transport is None or report.name_for(n) == transport
            with group.compile(chain) as graph:
                for _ in range(4):
                    graph.run(x=parts)
                results.append([graph.outputs(rank)["y"] for rank in range(2)])
    right = results[0][0]
    assert all(np.array_equal(right, sums) for sums in (*results[0], *results[1]))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["push", "push-shm", "nccl", "host"])
def test_large_sums_travel_in_halves_and_all_ranks_hold_the_same_bits(name: str, kind: str) -> None:
    n = gg.MIN_NARROW_ELEMENTS + 5
    parts = [RNG.standard_normal((1, n)).astype("f4") for _ in range(2)]

    def build(g: gg.RankGraph, rank: int) -> gg.Tensor:
        return g.output("y", g.all_reduce(g.input("x", (1, n)) * 1.0))

    results = []
    for devices, transport in ((CARDS[:2], name), (["cpu", "cpu"], "host")):
        with gg.Group(devices, transport=transport, reduce_dtype=kind) as group, group.compile(build) as graph:
            for _ in range(3):
                graph.run(x=parts)
            results.append([graph.outputs(rank)["y"] for rank in range(2)])
    (a, b), (right, _) = results
    assert np.array_equal(a, b)
    # Two numbers are added exactly before they are rounded, also by NCCL.
    assert np.array_equal(a, right)


def test_the_free_choice_is_timed_and_told(group: gg.Group) -> None:
    report = attach(group)
    print(report.table())
    assert report.row("push").passed and report.row("host").passed
    assert report.name_for(4096) != "host"
    json.dumps(report.as_dict())


def test_nccls_trial_passes_in_a_child(group: gg.Group, tmp_path: Path) -> None:
    os.environ["PYGGML_CACHE"] = str(tmp_path)
    links = links_of(group)
    if links.library is None:
        pytest.skip("NCCL is not installed")
    for peers in (True, False):
        verdict = nccl.verdict(links.library, links.uuids, peers, deadline_s=60)
        print(links.library, "peers" if peers else "shm", verdict)
        assert verdict.problem is None


def test_nccl_without_peers_sums_right_in_a_process_of_its_own() -> None:
    script = Path(__file__).with_name("time_transports.py")
    command = [sys.executable, str(script), "--transport", "nccl-shm", "--sizes", "4096", "--no-others"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and "nccl-shm" in done.stdout


def test_emulated_lies_on_real_cards_leave_nccl_without_peers_or_host(group: gg.Group) -> None:
    class Lying(CudaLinks):
        def copy(self, source: int, target: int, payload: bytes, by_kernel: bool) -> bytes:
            return super().copy(source, target, payload, by_kernel)[:-64] + bytes(64)

        def known_problems(self, first: int, second: int) -> list[str] | None:
            return None

        def keep_problems(self, first: int, second: int, problems: list[str]) -> None:
            pass  # the next test is to find the truth

        def open(self, name: str) -> None:
            if name != "host":
                raise DeviceError("not opened in this test")

    report = choose(Lying(group.backends, lambda n: 1.0))
    assert not report.row("push").passed and not report.row("nccl").passed and not report.can_copy(0, 1)


@pytest.mark.parametrize("name", ["push", "nccl"])
def test_two_ranks_record_at_once_a_thousand_times(name: str) -> None:
    """Each on its own thread; recording must not see, or disturb, what the other rank does meanwhile."""

    def build(g: gg.RankGraph, rank: int) -> None:
        x = g.input("x", (4096,))
        for _ in range(4):
            x = g.all_reduce(x * 0.5)
        g.output("y", x)

    with gg.Group(CARDS[:2], transport=name) as group, group.compile(build) as graphs:
        for n in range(1000):
            for graph in graphs.graphs:
                graph.check_fresh().forget_recorded()
            assert (graphs.run(x=np.full(4096, n, np.float32))["y"] == n).all()
            assert {graph.replay[0] for graph in graphs.graphs} == {"recorded" if n else "waiting"}
