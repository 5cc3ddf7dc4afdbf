"""Speeds of devices and links, measured with small graphs and kept for the process.

A device: how fast it reads weights in matrix-vector products, how fast it multiplies matrices, and what
a layer's small operations take. Ranks that share a device are measured while all of them are at work.
Links: a sum over ranks, a copy from one rank to another. Times are the best of several runs.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

import pyggml as gg

from .balance import DeviceFacts
from .demand import ModelFacts
from .prediction import LinkTimes, Points
from .slices import WHOLE
from .weight_table import Use

SUM_ELEMENTS = (4096, 65536, 2**20, 2**21)
N_IN, N_OUT = 4096, 8192
_N_RUNS = (3, 20)  # at least and at most; between them as many as _SECONDS allow
_SECONDS = 0.02
_LONG_S = 1.0  # a run that takes so long, as on a software driver, is not repeated
_OPS_A_LAYER = 14  # operations that the device does one by one in a dense layer
_N_LAYERS = 8
_N_SUMS = 4
# More than a processor's or a card's caches hold, so that memory is what is measured.
_READ_BYTES = {"cpu": 2**26, "gpu": 2**28}
_N_PASSES = {"cpu": 1, "gpu": 8}
_N_TOKENS = {"cpu": 32, "gpu": 512}


@dataclass(frozen=True)
class Speed:
    """One rank's speed. Units: bytes of weights a second, floating-point operations a second, seconds a layer."""

    bandwidth: float
    flops: float
    layer_s: float


def main_type(model: ModelFacts) -> str:
    """The name of the type that most bytes of the model's matrices have."""
    sizes: Counter[str] = Counter()
    for row in model.rows:
        if row.name in model.types and row.use in (Use.MUL_MAT, Use.MUL_MAT_ID):
            kind = model.types[row.name]
            sizes[str(kind)] += WHOLE.n_bytes(row.shape, kind)
    return sizes.most_common(1)[0][0]


def measured(
    devices: Sequence[DeviceFacts], kind: str, *, threads: int | None = None, is_at_once: bool = True
) -> list[DeviceFacts]:
    """The devices of a group with their speeds; ranks on one device work at once or one after the other."""
    times = Counter(d.name for d in devices)
    n_cpu = sum(d.kind == "cpu" for d in devices)
    share = threads or max(1, gg.default_threads() // max(1, n_cpu))
    found = []
    for d in devices:
        speed = device_speed(d.name, kind, n_at_once=times[d.name] if is_at_once else 1, threads=share)
        found.append(replace(d, bandwidth=speed.bandwidth, flops=speed.flops, layer_s=speed.layer_s))
    return found


@functools.cache
def device_speed(name: str, kind: str = "q8_0", *, n_at_once: int = 1, threads: int | None = None) -> Speed:
    """Measure a device with weights of one type, with so many ranks at work on it at once."""
    with gg.Group([name] * n_at_once, threads=threads) as group:
        # What a card does in a second takes a software driver minutes.
        where = "cpu" if group.backends[0].device.kind in ("cpu", "software") else "gpu"
        with _Matrices(group.backends, gg.dtype(kind), _READ_BYTES[where]) as matrices:
            n_bytes, n_tokens, n_passes = matrices.n_bytes, _N_TOKENS[where], _N_PASSES[where]
            reading = best_seconds(group, lambda g, rank: matrices.multiply(g, rank, 1, n_passes)) / n_passes
            computing = best_seconds(group, lambda g, rank: matrices.multiply(g, rank, n_tokens))
        layers = best_seconds(group, _small_operations)
    n_operations = 2 * n_tokens * N_IN * N_OUT * matrices.n
    return Speed(n_bytes / reading, n_operations / computing, layers / _N_LAYERS)


class _Matrices:
    """Zeroed matrices on each rank, in the layout in which its device multiplies fastest."""

    def __init__(self, backends: Sequence[gg.Backend], kind: gg.DType, n_bytes: int) -> None:
        each = N_OUT * N_IN // kind.block_size * kind.type_size
        self.n = max(1, n_bytes // each)
        self.n_bytes = self.n * each
        specs = {f"w{i}": ((N_OUT, N_IN), kind) for i in range(self.n)}
        zeros = np.zeros(each, np.uint8)
        self._buffers: list[gg.Buffer] = []
        try:
            for backend in backends:
                layout = backend.weight_buffer_type((N_OUT, N_IN), kind)
                self._buffers.append(gg.Buffer(backend, specs, buffer_type=layout, weights=True))
                for name in specs:
                    self._buffers[-1][name].set(zeros)
        except BaseException:
            self._close()
            raise

    def multiply(self, g: gg.RankGraph, rank: int, n_tokens: int, n_passes: int = 1) -> None:
        """Every matrix times n_tokens columns, one after the other."""
        x, buffer = g.state("x", (n_tokens, N_IN)), self._buffers[rank]
        for name in [*buffer] * n_passes:
            g.do(gg.mul_mat(g.use(buffer[name]), x))

    def _close(self) -> None:
        for buffer in self._buffers:
            buffer.close()

    def __enter__(self) -> _Matrices:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()


def _small_operations(g: gg.RankGraph, rank: int) -> None:
    x = g.state("x", (1, N_IN))
    for _ in range(_N_LAYERS * _OPS_A_LAYER):
        x = x * 1.0
    g.do(x)


def best_seconds(group: gg.Group, build: Callable[[gg.RankGraph, int], None]) -> float:
    """The shortest run of what `build` puts into each rank's graph, after one to warm up."""
    with group.compile(build) as graph:
        graph.step()
        times: list[float] = []
        at_least, at_most = _N_RUNS
        while len(times) < at_least or (len(times) < at_most and sum(times) < _SECONDS):
            start = time.perf_counter()
            graph.step()
            times.append(time.perf_counter() - start)
            if times[-1] > _LONG_S:
                break
    return min(times)


@functools.cache
def link_times(names: tuple[str, ...], *, threads: int | None = None) -> LinkTimes:
    """Sums over all these ranks, and copies from each to the next on average."""
    if len(names) == 1:
        return LinkTimes()
    with gg.Group(names, threads=threads) as group:
        reduce = tuple((4 * n, seconds) for n, seconds in sums(group).items())
        hops = [[copy_seconds(group, r, r + 1, n) for r in range(len(names) - 1)] for n in SUM_ELEMENTS]
        copy: Points = tuple((4 * n, sum(hop) / len(hop)) for n, hop in zip(SUM_ELEMENTS, hops))
    return LinkTimes(reduce, copy)


def sums(group: gg.Group) -> dict[int, float]:
    """Seconds of one sum by number of elements: as its transports were timed, or measured here."""
    report = group.transports
    timed = sorted({n for row in report.rows for n in row.seconds})
    if timed:
        return {n: report.row(report.name_for(n)).seconds[n] for n in timed}
    return {n: sum_seconds(group, n) for n in SUM_ELEMENTS}


def sums_by_transport(group: gg.Group) -> dict[str, dict[int, float]]:
    """Seconds of one sum by number of elements, of each transport that passed; through host memory measured here."""
    report = group.transports
    found = {row.name: dict(row.seconds) for row in report.rows if row.passed and row.seconds}
    if "host" not in found and report.row("host").passed:
        found["host"] = {n: sum_seconds(group, n) for n in SUM_ELEMENTS}
    return found


def sum_seconds(group: gg.Group, n_elements: int) -> float:
    """Seconds of one sum of so many float32 numbers over all ranks."""

    def chain(g: gg.RankGraph, rank: int) -> None:
        x = g.state("x", (1, n_elements))
        for _ in range(_N_SUMS):
            x = g.all_reduce(x * 1.0)

    return best_seconds(group, chain) / _N_SUMS


def copy_seconds(group: gg.Group, source: int, target: int, n_elements: int) -> float:
    """Seconds of one copy of so many float32 numbers from one rank to another."""

    def copies(g: gg.RankGraph, rank: int) -> None:
        if rank == source:
            x = g.state("x", (1, n_elements))
            for _ in range(_N_SUMS):
                x = g.send(x * 1.0, to=target)
        elif rank == target:
            for _ in range(_N_SUMS):
                g.do(g.recv((1, n_elements), source=source) * 1.0)

    return best_seconds(group, copies) / _N_SUMS


def copied(group: gg.Group, source: int, target: int, data: np.ndarray) -> np.ndarray:
    """What arrives at one rank of the numbers that another sends. Shapes: float32 [n] -> [n]."""

    def copy(g: gg.RankGraph, rank: int) -> None:
        if rank == source:
            g.send(g.weight(data) * 1.0, to=target)
        elif rank == target:
            g.output("y", g.recv(data.shape, source=source) * 1.0)

    with group.compile(copy) as graph:
        graph.step()
        return graph.outputs(target)["y"]
