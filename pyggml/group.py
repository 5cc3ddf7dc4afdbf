"""A group of ranks: one model or script over several devices, or several times over one.

Each rank has a backend, a graph of its own and a native thread; one call runs all of them at once
without the GIL. Collectives meet at a deadline, so nothing waits for ever: the first fault ends the
call with the original reason and closes the group. A device may be listed more than once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .backend import Backend, default_threads
from .cuda_links import attach
from .cut import cut_tensor
from .device import Device
from .dtypes import DType
from .errors import ClosedError, ComputeError, DeviceError, ShapeError
from .graph import Graph
from .layout import Collective
from .tensor import Tensor
from .transport import TransportReport

MAX_RANKS = 16


class RankGraph(Graph):
    """The graph of one rank: a Graph that also knows its place and can take part in collectives.

    Every rank must build the same collectives in the same order.
    """

    def __init__(self, backend: Backend, rank: int = 0, n_ranks: int = 1, **options: Any) -> None:
        super().__init__(backend, **options)
        self.rank = rank
        self.n_ranks = n_ranks

    def weight(
        self, data: Any, *, type: str | DType | None = None, name: str = "", cut: str | None = None
    ) -> Tensor:
        """Upload a constant, or with `cut` this rank's slice of it, not requantised.

        `cut="out"` takes whole output rows, `cut="in"` input columns on block boundaries.
        """
        if cut is not None:
            data = cut_tensor(data, cut, self.rank, self.n_ranks)
        return super().weight(data, type=type, name=name)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of this node over all ranks, bitwise the same on each."""
        self._need(x.dtype.name == "f32" and x.is_contiguous, x, "all_reduce takes contiguous float32")
        return self._collective(lib.PG_ALL_REDUCE, x)

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' tensors of one shape along a new outermost dimension, in rank order."""
        self._need(x.is_contiguous and x.ndim <= 3, x, "all_gather takes up to three contiguous dimensions")
        whole = self._leaf((self.n_ranks, *x.shape), x.dtype)
        self._collective(lib.PG_ALL_GATHER, x, whole)
        return whole

    def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """The root's value of this node on every rank."""
        self._need(
            x.is_contiguous and 0 <= root < self.n_ranks,
            x,
            f"broadcast takes a root of 0 to {self.n_ranks - 1}",
        )
        return self._collective(lib.PG_BROADCAST, x, peer=root)

    def send(self, x: Tensor, to: int) -> Tensor:
        """Hand this node to another rank, which must recv() it."""
        self._need(
            x.is_contiguous and 0 <= to < self.n_ranks and to != self.rank,
            x,
            f"send from rank {self.rank} to {to}",
        )
        return self._collective(lib.PG_SEND, x, peer=to)

    def recv(self, shape: Sequence[int], source: int, kind: str | DType = "f32") -> Tensor:
        """The tensor that another rank sends."""
        if not 0 <= source < self.n_ranks or source == self.rank:
            raise ShapeError(f"rank {self.rank} cannot recv from {source} in a group of {self.n_ranks}")
        x = self._leaf(shape, kind)
        self.collectives.append(Collective(self.n_nodes, lib.PG_RECV, x, peer=source))
        return x

    def _need(self, condition: bool, x: Tensor, words: str) -> None:
        if not condition:
            raise ShapeError(f"{words}; this is {x.shape} {x.dtype.name}")

    def _leaf(self, shape: Sequence[int], kind: str | DType) -> Tensor:
        leaf = self.phantom("", shape, kind)
        lib.ggml_set_input(leaf.handle)
        return leaf

    def _collective(self, op: int, x: Tensor, other: Tensor | None = None, peer: int = 0) -> Tensor:
        self.do(x)
        self.collectives.append(Collective(self.n_nodes, op, x, other, peer))
        return x


class Group:
    """Ranks that run graphs together.

    `Group(["cuda:0", "cuda:1"])`, any mix of devices, 2 to 16 of them; `threads` is the number of CPU
    threads of each CPU rank (default: this process's processors dealt to the CPU ranks).
    `deadline_s` bounds every wait of one rank for another. Between CUDA cards sums take the fastest
    transport that proved itself at the start; `transport` (or PYGGML_TRANSPORT) forces one of push, nccl,
    nccl-shm and host. What was tried is in `transports`.
    Raises DeviceError. Use it as a context manager or close() it.
    """

    def __init__(
        self,
        devices: Sequence[str | Device],
        *,
        threads: int | None = None,
        transport: str | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        if not 1 <= len(devices) <= MAX_RANKS:
            raise DeviceError(f"a group of {len(devices)} ranks; 1 to {MAX_RANKS} are supported")
        self.backends: list[Backend] = []
        self._handle: Any = None
        n_cpu = sum(str(d).startswith("cpu") or getattr(d, "kind", "") == "cpu" for d in devices)
        share = threads or max(1, default_threads() // max(1, n_cpu))
        try:
            for device in devices:
                self.backends.append(Backend(device, threads=share))
        except BaseException:
            self.close()
            raise
        self._handle = lib.pg_group_new(len(devices), deadline_s)
        self._threads = [
            threading.Thread(
                target=lib.pg_group_serve, args=(self._handle, r), name=f"pyggml-rank-{r}", daemon=True
            )
            for r in range(len(devices))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.transports: TransportReport = attach(self, transport=transport, wait_s=deadline_s)
        except BaseException:
            self.close()
            raise

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""
        return len(self.backends)

    @property
    def handle(self) -> Any:
        """The C group; raises ClosedError after close() or a fault."""
        if self._handle is None:
            raise ClosedError("the group is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether close() was called or a fault closed the group."""
        return self._handle is None

    def n_reduces(self, rank: int = 0) -> int:
        """All-reduces that a rank has taken part in."""
        return int(lib.pg_group_n_reduces(self.handle, rank))

    def compile(self, function: Callable[[RankGraph, int], Any], *, max_nodes: int = 4096) -> GroupGraph:
        """Build each rank's graph by calling function(graph, rank), and lay them out.

        An error in any rank is raised as it is, after the graphs are freed.
        """
        graphs: list[RankGraph] = []
        try:
            for rank, backend in enumerate(self.backends):
                graphs.append(RankGraph(backend, rank, self.n_ranks, max_nodes=max_nodes))
                function(graphs[-1], rank)
            return GroupGraph(self, graphs)
        except BaseException:
            for graph in graphs:
                graph.close()
            raise

    def close(self) -> None:
        """End the rank threads and the backends; graphs must be closed first. Closing twice is allowed."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            lib.pg_group_close(handle)
            for thread in self._threads:
                thread.join()
            lib.pg_group_free(handle)
        for backend in self.backends:
            backend.close()

    def wait(self, n_left: int = 0) -> None:
        """Wait until each rank has at most n_left posted steps to do."""
        for rank in range(self.n_ranks):
            lib.pg_group_wait(self.handle, rank, n_left)

    def fail(self, words: str, *, rank: int = -1) -> None:
        """Make every rank leave what it waits for; the run in flight ends with this reason."""
        lib.pg_group_fail(self.handle, lib.PG_FAULT_CLOSED, rank, words.encode())

    def fault(self) -> str | None:
        """What went wrong first, None if nothing did."""
        rank, text = ffi.new("int *"), ffi.new("char[512]")
        if not lib.pg_group_fault(self.handle, rank, text, 512):
            return None
        return f"rank {rank[0]}: {ffi.string(text).decode('utf-8', 'replace')}"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class GroupGraph:
    """The graphs of all ranks, run together.

    `graphs[r].feeds` and `.results` are rank r's host arrays behind step(). Ranks that build nothing
    take no part.
    """

    def __init__(self, group: Group, graphs: Sequence[RankGraph]) -> None:
        self.group = group
        self.graphs = list(graphs)
        _check_collectives(self.graphs)
        self._runs = ffi.new("pg_run[]", group.n_ranks)
        largest = 1
        for rank, graph in enumerate(self.graphs):
            if not graph.n_nodes:
                continue
            graph.build()
            graph.join(group.handle, rank, self._runs[rank])
            sums = (c.tensor.n_bytes // 4 for c in graph.collectives if c.op == lib.PG_ALL_REDUCE)
            largest = max(largest, *sums, 1)
        if not lib.pg_group_reserve(group.handle, largest):
            raise ComputeError(f"no host memory for sums of {largest} elements")

    def step(self) -> None:
        """Send every rank's feeds, run all ranks, fill their results.

        Raises ComputeError with the first fault; the group is then closed.
        """
        self._check_feeds()
        lib.pg_runs_finish(self.group.handle, self._runs)
        self._check()

    def post(self) -> None:
        """Begin a step behind those already posted; finish() waits for all of them.

        The feeds must stay as they are until the step is done (see Group.wait).
        """
        self._check_feeds()
        lib.pg_runs_post(self.group.handle, self._runs)

    def finish(self) -> None:
        """Wait for all posted steps of the group.

        Raises ComputeError with the first fault; the group is then closed.
        """
        self.group.wait()
        self._check()

    def _check_feeds(self) -> None:
        """What one rank would refuse must not begin on the others."""
        for graph in self.graphs:
            if graph.n_nodes:
                graph.check_feeds()

    def _check(self) -> None:
        if any(run.status for run in self._runs):
            reason = self.group.fault() or "a rank failed"
            self.group.close()
            raise ComputeError(f"the group's run failed: {reason}")

    def run(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Set inputs on every rank (a list gives each rank its own), run, return copies of rank 0's outputs.

        Outputs that rank 0 does not have come from the first rank that has them.
        """
        for rank, graph in enumerate(self.graphs):
            mine = {n: v[rank] if isinstance(v, list) else v for n, v in inputs.items() if n in graph.feeds}
            graph.fill(mine)
        unknown = set(inputs) - {n for graph in self.graphs for n in graph.feeds}
        if unknown:
            raise ShapeError(f"no rank has an input {sorted(unknown)[0]!r}")
        self.step()
        outputs: dict[str, np.ndarray] = {}
        for rank in reversed(range(len(self.graphs))):
            outputs |= self.outputs(rank)
        return outputs

    def outputs(self, rank: int) -> dict[str, np.ndarray]:
        """Copies of one rank's outputs of the last run."""
        return self.graphs[rank].copy_results()

    def close(self) -> None:
        """Free all ranks' graphs."""
        for graph in self.graphs:
            graph.close()

    def __enter__(self) -> GroupGraph:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _check_collectives(graphs: Sequence[RankGraph]) -> None:
    """Ranks must agree on collectives, or they would wait for each other until the deadline."""
    meets = (lib.PG_ALL_REDUCE, lib.PG_ALL_GATHER, lib.PG_BROADCAST)
    orders = {
        r: [(c.op, c.tensor.shape) for c in g.collectives if c.op in meets] for r, g in enumerate(graphs)
    }
    first = orders[0]
    for rank, order in orders.items():
        if order != first:
            raise ShapeError(
                f"rank {rank} takes part in {len(order)} collectives {order[:3]}, rank 0 in {len(first)} {first[:3]}; "
                "all ranks need the same"
            )
    pairs: dict[tuple[int, int], list[list[Any]]] = {}
    for rank, graph in enumerate(graphs):
        for c in graph.collectives:
            if c.op in (lib.PG_SEND, lib.PG_RECV):
                key = (rank, c.peer) if c.op == lib.PG_SEND else (c.peer, rank)
                pairs.setdefault(key, [[], []])[c.op == lib.PG_RECV].append(
                    (c.tensor.shape, c.tensor.dtype.name)
                )
    for (source, to), (sent, received) in pairs.items():
        if sent != received:
            raise ShapeError(f"rank {source} sends {sent} to rank {to}, which receives {received}")
