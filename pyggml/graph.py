"""A graph on one backend: built once, laid out once, run many times.

Inputs and everything computed live in an allocator's buffer; weights and states live in buffers of their own and keep
their values between runs. Graphs that share an allocator overlap in memory, so one must be read before the next runs.
One thread uses a graph at a time; a run holds no GIL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ._ffi import lib
from .definition import Definition
from .errors import ComputeError, ShapeError
from .layout import Input, Layout, measure
from .profile import Work, grouped, node_name
from .tensor import as_numpy
from .transfer import fill
from .windows import resized


class Graph(Definition):
    """Operations over named inputs, with named outputs.

    `feeds` and `results` are the host arrays behind `step()`: fill the feeds in place, call step(), read the results.
    `run(**inputs)` is the same in one convenient call. Graphs given the same dict of `feeds` share their host arrays by
    input name. A graph of which something was closed refuses to run. On a CUDA card the launches of the second run are
    recorded and replayed from then on, unless `replay` is False.
    """

    def reserve(self) -> None:
        """Size the shared allocator for this graph without placing it there."""
        self.check_open()
        measure(self.backend, self._allocator, self._graph, self.collectives)

    def build(self) -> Graph:
        """Check every node with the device and lay the graph out; run() does it when needed.

        Raises ComputeError naming the operation that the device lacks, AllocationError.
        """
        self.check_open()
        if self._layout is None:
            inputs = {
                name: Input(handle, self._feeds[name], *self._limits.get(name, (0, 1)))
                for name, handle in self._inputs.items()
            }
            outputs = list(self._outputs.values())
            self._layout = Layout(
                self.backend, self._allocator, self._graph, inputs, outputs, self.collectives
            )
            self._longest = {name: self._feeds[name] for name in self._inputs}
            if self.is_alone:
                self.record()
        return self

    @property
    def is_alone(self) -> bool:
        """Whether it runs by itself, not as one rank's of a group."""
        return True

    def record(self) -> None:
        """Where the device can: record the launches of the second run, and replay them from then on.

        Without effect where the graph was made with replay=False or PYGGML_CUDA_GRAPHS is 0.
        """
        if self._may_replay and self._layout is not None:
            self._layout.record()

    @property
    def n_fused(self) -> int:
        """Runs of nodes that our own CUDA kernels compute as one; none with PYGGML_FUSED=0."""
        return 0 if self._layout is None else self._layout.n_fused

    @property
    def replay(self) -> tuple[str, str]:
        """Whether runs replay recorded launches: `off`, `waiting`, `recorded`, or `refused` and why."""
        return ("off", "") if self._layout is None else self._layout.replay

    @property
    def window_reader(self) -> str | None:
        """The operation for whose sake the graph's windows cannot move; None if they can."""
        self.check_open()
        return self._windows.reader(self._graph)

    def move(self, start: int, length: int) -> None:
        """Have the windows (let_move) begin at `start` units and be `length` long in the next runs.

        The feeds of inputs among them change their shape; their host memory stays where it is.
        Raises ShapeError for a length that was not laid out, or windows that cannot move.
        """
        if (start, length) == (self._windows.start, self._windows.length):
            return
        reader = self.window_reader
        if reader is not None:
            raise ShapeError(f"the windows of this graph cannot move: {reader} needs them as they are")
        with self.lock:
            layout = self.check_fresh()
            self._windows.move(self._graph, start, length)
            layout.forget_recorded()
            for name, handle in self._inputs.items():
                longest = self._longest[name]
                shape = self._windows.shape_of(handle, longest.shape)
                self._feeds[name] = resized(longest, shape)
                layout.changed(name, self._feeds[name].nbytes)

    def check_fresh(self) -> Layout:
        """The layout, made if need be, when all is as it must be before a run.

        Raises ClosedError or ComputeError where a run would use memory that is gone or in use.
        """
        layout = self._layout
        if layout is None or self._lost:
            layout = self.build()._layout
            assert layout is not None
        layout.check_ready()
        return layout

    def note_in_flight(self, runner: object | None) -> None:
        """Somebody's run in this graph's memory was begun, or with None nobody's: until then no other begins."""
        self._allocator.in_flight = None if runner is None else id(runner)

    def check_feeds(self) -> None:
        """Raise what would end the next step at once: a closed part, or a row that its table does not have."""
        self.check_fresh().check_rows()

    def join(self, group: Any, rank: int, run: Any) -> None:
        """Make the built graph one rank's of a native group and describe its part in the C struct `run`."""
        self.check_fresh().join(group, rank, run)

    def node_times(self, n_runs: int = 3) -> list[Work]:
        """Send the feeds and run the nodes one by one: the least time of each in n_runs, like nodes together.

        Collectives of a group are left out, so that results are those of one rank alone. Raises ComputeError.
        """
        if n_runs < 1:
            raise ShapeError(f"n_runs = {n_runs}; at least 1 is needed")
        with self.lock:
            layout = self.check_fresh()
            runs = [layout.time_nodes(self.backend, self._graph) for _ in range(n_runs)]
        nodes = (lib.ggml_graph_node(self._graph, i) for i in range(len(runs[0])))
        return grouped([node_name(node) for node in nodes], [min(times) for times in zip(*runs)])

    def step(self) -> Mapping[str, np.ndarray]:
        """Send the feeds, compute, fill the results. The arrays are the same in every call."""
        with self.lock:
            layout = self.check_fresh()
            status = layout.run()
        if status:
            layout.check(status)
        return self.results

    def post(self) -> None:
        """Begin a step; finish() ends it. Host work may go on where the device computes by itself."""
        with self.lock:
            layout = self.check_fresh()
            layout.check(layout.start())
            self._allocator.in_flight = id(self)

    def finish(self) -> Mapping[str, np.ndarray]:
        """Wait for the step that post() began, and fill the results."""
        with self.lock:
            self._read()
        return self.results

    def run(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Set the inputs, compute, return copies of the outputs (float32 for quantised ones).

        Ctrl-C ends it where the device computes on this thread; states are then as far as the run got.
        Raises ShapeError for a missing, unknown or misshapen input, or a row that its table does not have.
        """
        with self.lock:
            self.start(**inputs)
            return self.wait()

    def start(self, **inputs: Any) -> None:
        """Begin a run; wait() ends it. Host work may go on where the device computes by itself."""
        with self.lock:
            self.check_fresh()
            self.fill(inputs)
            self.post()

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the run that start() began and return copies of the outputs."""
        with self.lock:
            self._read()
            return self.copy_results()

    def _read(self) -> None:
        self.check_open()
        if self._layout is None or self._allocator.in_flight != id(self):
            raise ComputeError("no run of this graph was started")
        self._allocator.in_flight = None
        self._layout.read()

    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Copy values into the feeds; every input must be given.

        Raises ShapeError for a missing, unknown or misshapen input.
        """
        if inputs.keys() != self._inputs.keys():
            raise ShapeError(f"inputs {sorted(inputs)} were given; the graph has {sorted(self._inputs)}")
        for name, value in inputs.items():
            fill(name, self._feeds[name], value)

    def fetch(self, name: str) -> np.ndarray:
        """An output as the last run left it, read now where it is lazy; nothing may have run in this memory since."""
        if self._outputs[name].is_lazy:
            with self.lock:
                self.check_fresh().fetch(name)
        return self._results[name]

    def copy_results(self) -> dict[str, np.ndarray]:
        """Copies of the outputs of the last run, float32 for quantised ones."""
        for name, out in self._outputs.items():
            if out.is_lazy:
                self.fetch(name)
        return {n: as_numpy(out.raw.copy(), out.dtype, out.shape) for n, out in self._outputs.items()}

    @property
    def n_nodes(self) -> int:
        """Nodes that a run computes."""
        self.check_open()
        return int(lib.ggml_graph_n_nodes(self._graph))

    def _release(self) -> None:
        if self._allocator.in_flight == id(self):
            self._allocator.in_flight = None
            if not self.backend.closed:
                self.backend.synchronize()
        if self._layout is not None:
            self._layout.free()
        lib.ggml_free(self._ctx)
        self._ctx = self._graph = self._layout = None
        for buffer in self._buffers:
            buffer.end()
        if self._owns_allocator:
            self._allocator.end()
