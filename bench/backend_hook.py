"""Runs graphs node by node: ggml's backends call these classes instead of their own graph_compute.

`Recording` keeps what each node of one model reads and makes; `Comparison` runs the same on another device, gives each
node what the recorded one read, and compares what it makes. Only one of them may catch runs at a time.
"""

from __future__ import annotations

import ctypes
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from distance import nmse, worst_place
from graph_nodes import IN_NUMPY, Finding, Node, RankRun, ReadValue, address, read, write

import pyggml as gg
from pyggml._ffi import ffi, lib

PERTURBATION = 1.01


class CGraph(ctypes.Structure):
    """struct ggml_cgraph of the pinned ggml."""

    _fields_ = [
        ("size", ctypes.c_int), ("n_nodes", ctypes.c_int), ("n_leafs", ctypes.c_int), ("nodes", ctypes.c_void_p),
        ("grads", ctypes.c_void_p), ("grad_accs", ctypes.c_void_p), ("leafs", ctypes.c_void_p),
        ("use_counts", ctypes.c_void_p), ("hash_set", ctypes.c_size_t * 3), ("order", ctypes.c_int),
        ("uid", ctypes.c_uint64),
    ]  # fmt: skip


# Of struct ggml_backend: the id, then twelve functions before graph_compute.
COMPUTE_OFFSET = 13 * ctypes.sizeof(ctypes.c_void_p)
Compute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class NodeByNode:
    """All runs of one model. `each` nodes at most are launched together, 0 for as many as there are."""

    each = 1

    def __init__(self, *, is_verbose: bool = False) -> None:
        self.runs: list[list[RankRun]] = []
        self.fault = ""
        self.n_segments = 0
        self._is_verbose = is_verbose
        self._running: dict[int, RankRun] = {}
        self._originals: dict[int, tuple[int, Any]] = {}
        self._callbacks: list[Any] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Within it, all runs of graphs and groups are ours; the backends must outlive it."""
        kept = [(kind, name, getattr(kind, name)) for kind in (gg.Graph, gg.GroupGraph) for name in ("step", "post")]
        for kind, name, method in kept:
            setattr(kind, name, self._wrapped(method))
        try:
            yield
        finally:
            for kind, name, method in kept:
                setattr(kind, name, method)
            for backend, (function, _) in self._originals.items():
                ctypes.c_void_p.from_address(backend + COMPUTE_OFFSET).value = function
            self._originals.clear()
            self._running.clear()

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(graph: Any, *rest: Any) -> Any:
            is_group = isinstance(graph, gg.GroupGraph)
            if is_group:
                graph.group.wait()
            self._begin(graph.graphs if is_group else [graph])
            return method(graph, *rest)

        return call

    def _begin(self, graphs: Sequence[gg.Graph]) -> None:
        ranks = []
        for rank, graph in enumerate(graphs):
            if graph.n_nodes:
                graph.check_fresh()  # lays it out: nodes have no memory before
                ranks.append(RankRun.of(graph, len(self.runs), rank))
                self._hook(ranks[-1].backend)
        self.runs.append(ranks)
        self._running = {run.backend: run for run in ranks}
        for run in ranks:
            self.begin(run)

    def _hook(self, backend: int) -> None:
        if backend not in self._originals:
            slot = ctypes.c_void_p.from_address(backend + COMPUTE_OFFSET)
            assert slot.value is not None, "struct ggml_backend is laid out otherwise than COMPUTE_OFFSET says"
            self._originals[backend] = slot.value, Compute(slot.value)
            self._callbacks.append(Compute(self._compute))
            slot.value = ctypes.cast(self._callbacks[-1], ctypes.c_void_p).value

    def _compute(self, backend: int, graph: int) -> int:
        run, original = self._running.get(backend), self._originals[backend][1]
        if run is None or self.fault:
            return int(original(backend, graph))
        try:
            return self._segment(run, original, CGraph.from_address(graph))
        except BaseException:  # ggml calls this: nothing may pass through
            self.fault = traceback.format_exc()
            return int(original(backend, graph))

    def _segment(self, run: RankRun, original: Any, graph: CGraph) -> int:
        """What ggml would have computed at once; there are several where ranks meet in between."""
        self.n_segments += 1
        lib.ggml_backend_synchronize(ffi.cast("ggml_backend_t", run.backend))
        nodes = [run.at.get(at) for at in (ctypes.c_void_p * graph.n_nodes).from_address(graph.nodes)]
        working = [k for k, node in enumerate(nodes) if node is not None]
        for place, k in enumerate(working):
            if self.each == 0 and k != working[-1]:
                continue
            first = working[max(0, place + 1 - self.each)] if self.each else 0
            window = [node for node in nodes[first : k + 1] if node is not None]
            if self._is_verbose:
                print(f"run {run.number} rank {run.rank} #{window[-1].index} {window[-1].text}", flush=True)
            self.before(run, window)
            if status := self._launch(run, original, graph, first, k + 1):
                self.fault = f"status {status} of #{window[-1].index} {window[-1].text}"
                return status
            self.after(run, window[-1])
        return 0

    def _launch(self, run: RankRun, original: Any, graph: CGraph, first: int, stop: int) -> int:
        part = CGraph.from_buffer_copy(graph)
        part.size = part.n_leafs = part.uid = 0
        part.leafs = part.grads = part.grad_accs = None
        part.nodes, part.n_nodes = graph.nodes + first * ctypes.sizeof(ctypes.c_void_p), stop - first
        status = original(run.backend, ctypes.addressof(part))
        lib.ggml_backend_synchronize(ffi.cast("ggml_backend_t", run.backend))
        return int(status)

    def begin(self, run: RankRun) -> None:
        """A run begins."""

    def before(self, run: RankRun, window: list[Node]) -> None:
        """These nodes are about to be launched."""

    def after(self, run: RankRun, node: Node) -> None:
        """The last of them is done."""


class Recording(NodeByNode):
    """The side that is right."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._last: dict[int, np.ndarray] = {}

    def before(self, run: RankRun, window: list[Node]) -> None:
        """Keep what it reads, once while it stays the same."""
        (node,) = window
        for source in node.sources:
            raw = read(source.root) if run.varies(source) else None
            last = self._last.get(source.root_address)
            if raw is not None and last is not None and np.array_equal(last, raw):
                raw = last
            if raw is not None:
                self._last[source.root_address] = raw
            node.fed.append(raw)

    def after(self, run: RankRun, node: Node) -> None:
        """Keep what it made."""
        node.made = read(node.tensor)


class Comparison(NodeByNode):
    """The other side. Where `is_fed`, nodes read the recorded values, so that errors do not add up.

    With `each` other than 1 every node runs again as the last of several, as ggml's own fusion would have it. The
    result of the first node from number `perturbed` on that makes floats is changed, to see that it is found.
    """

    def __init__(
        self, right: Recording, *, tolerance: float, each: int = 1, is_fed: bool = True, perturbed: int = -1,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.each = each
        self._right, self._tolerance, self._is_fed, self._perturbed = right, tolerance, is_fed, perturbed

    def begin(self, run: RankRun) -> None:
        """Find each node's counterpart."""
        runs = self._right.runs
        others = [other for other in runs[run.number] if other.rank == run.rank] if run.number < len(runs) else []
        if others:
            run.pair(others[0])
        else:
            run.only_here = list(run.nodes)

    def before(self, run: RankRun, window: list[Node]) -> None:
        """See whether the last one reads what it should, and give them all what the recorded ones read."""
        run.reading = [self._look(run, window[-1], j) for j in range(len(window[-1].sources))]
        if not self._is_fed:
            return
        done = {node.root_address for node in window if node.root_address == address(node.tensor)}
        for node in window:
            for j, source in enumerate(node.sources):
                right = self._right_bytes(run, node, j)
                if right is not None and source.root_address not in done and not otherwise_laid(node, j, right):
                    done.add(source.root_address)
                    write(source.root, right)

    def _right_bytes(self, run: RankRun, node: Node, j: int) -> np.ndarray | None:
        twin = node.twin
        if twin is None or len(twin.fed) != len(node.sources) or not run.varies(node.sources[j]):
            return None
        return twin.fed[j]

    def _look(self, run: RankRun, node: Node, j: int) -> ReadValue:
        """One source, before anything is given."""
        source, right = node.sources[j], self._right_bytes(run, node, j)
        is_destination = node.operation == "SET_ROWS" and j == 2  # most of it may hold anything
        if node.twin is None or right is None or self.each != 1 or is_destination:
            return ReadValue(source.text)
        theirs = node.twin.sources[j].view.of_root(right)
        error, alarm = nmse(source.view.of_root(read(source.root)), theirs), ""
        if not error <= self._tolerance and source.root_address not in run.bad_roots:
            is_compared = source.root_address not in run.uncompared_roots
            alarm = "differs though what made it was right" if is_compared else "differs, made by nodes only here"
        return ReadValue(source.text, error, alarm, otherwise_laid(node, j, right) if self._is_fed else "")

    def after(self, run: RankRun, node: Node) -> None:
        """Compare what it made."""
        raw, twin = read(node.tensor), node.twin
        if node is self._to_perturb(run):
            raw.view(IN_NUMPY[node.view.type])[:] *= PERTURBATION
            write(node.tensor, raw)
        if twin is None or twin.made is None:
            run.uncompared_roots.add(node.root_address)
            return
        run.uncompared_roots.discard(node.root_address)
        ours, theirs, note = node.view.values(raw), twin.view.values(twin.made), ""
        if node.operation == "SET_ROWS" and ours is not None and theirs is not None:
            ours, theirs, note = written_rows(twin, ours, theirs)
        error = nmse(ours, theirs)
        is_bad = not error <= self._tolerance
        (run.bad_roots.add if is_bad else run.bad_roots.discard)(node.root_address)
        example = worst_place(ours, theirs) if is_bad and ours is not None and theirs is not None else ""
        run.findings.append(Finding(node, error, is_bad, note, example, run.reading))

    def _to_perturb(self, run: RankRun) -> Node | None:
        if self._perturbed < 0:
            return None
        return next((n for n in run.nodes if n.index >= self._perturbed and n.has_floats), None)


def otherwise_laid(node: Node, j: int, right: np.ndarray) -> str:
    """Why the recorded bytes of a source cannot be given to this node; empty where they can."""
    source = node.sources[j]
    n_bytes = int(lib.ggml_nbytes(source.root))
    if n_bytes != right.size:
        return f"not given: it lies in {n_bytes} bytes here, in {right.size} on the CPU"
    return "" if node.twin is None or node.twin.sources[j].view == source.view else "not given: laid out otherwise"


def written_rows(twin: Node, ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray, str]:
    """The rows that SET_ROWS wrote. What several wrote is anybody's, and the others hold what was there."""
    raw = twin.fed[1] if len(twin.fed) > 1 else None
    rows = None if raw is None else twin.sources[1].view.of_root(raw)
    if rows is None or ours.shape[:2] != (1, 1) or rows.size != rows.shape[-1]:
        return ours, theirs, ""
    places, counts = np.unique(rows.astype(np.int64), return_counts=True)
    places = places[counts == 1]
    return ours[0, 0, places], theirs[0, 0, places], f", {len(places)} written rows"
