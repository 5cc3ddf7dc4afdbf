"""A graph laid out in memory: the native plan, and what a run of it sends and reads.

Belongs to one graph, which holds its backend's lock around every call here and says when none is allowed any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ._ffi import ffi, last_native_error, lib
from .allocator import Allocator
from .backend import Backend
from .cuda_module import are_graphs_on, are_kernels_on, cuda_api
from .dtypes import DType
from .errors import AllocationError, ComputeError, ShapeError
from .tensor import Tensor
from .transfer import Transfers

_SUCCESS = lib.GGML_STATUS_SUCCESS
_REPLAY_STATES = {
    lib.PG_REPLAY_OFF: "off",
    lib.PG_REPLAY_WAITING: "waiting",
    lib.PG_REPLAY_RECORDED: "recorded",
    lib.PG_REPLAY_REFUSED: "refused",
}


class Input(NamedTuple):
    """A tensor that each run sets, its host array, the rows that its numbers choose from (0: none), and among how many
    of them none may stand twice."""

    handle: Any
    feed: np.ndarray
    n_rows: int
    n_distinct: int = 1


class Output(NamedTuple):
    """A node that is read back after each run, or with is_lazy when asked for, and the memory that it is read into."""

    handle: Any
    dtype: DType
    shape: tuple[int, ...]
    raw: np.ndarray
    name: str = ""
    is_lazy: bool = False


@dataclass(frozen=True)
class Collective:
    """A cut of a rank's graph: after its first `end_node` nodes all ranks take part in `op`."""

    end_node: int
    op: int
    tensor: Tensor
    other: Tensor | None = None
    peer: int = 0


def _steps(collectives: Sequence[Collective]) -> Any:
    steps = ffi.new("pg_step[]", max(1, len(collectives)))
    for step, c in zip(steps, collectives):
        step.end_node, step.op, step.peer = c.end_node, c.op, c.peer
        step.tensor = c.tensor.handle
        step.other = ffi.NULL if c.other is None else c.other.handle
    return steps


def new_plan(backend: Backend, graph: Any, collectives: Sequence[Collective] = ()) -> Any:
    """The native plan of a C graph; every node of it is checked with the device.

    Raises ComputeError naming the operation that the device lacks.
    """
    if not lib.ggml_graph_n_nodes(graph):
        raise ShapeError("the graph computes nothing; name an output")
    at = ffi.new("int *")
    plan = lib.pg_plan_new(backend.handle, graph, _steps(collectives), len(collectives), at)
    if plan != ffi.NULL:
        return plan
    if at[0] < 0:
        raise AllocationError("no host memory for a plan")
    node = lib.ggml_graph_node(graph, at[0])
    words = ffi.string(lib.pg_obstacle(backend.device.handle, node)).decode()
    raise ComputeError(
        f"{backend.device.name} cannot compute {ffi.string(lib.ggml_op_desc(node)).decode()} "
        f"{ffi.string(node.name).decode('utf-8', 'replace')!r} "
        f"with result {[int(n) for n in node.ne]} (innermost first): {words}"
    )


def measure(
    backend: Backend, allocator: Allocator, graph: Any, collectives: Sequence[Collective] = ()
) -> None:
    """Size the allocator for a C graph without placing it there."""
    plan = new_plan(backend, graph, collectives)
    try:
        allocator.place(plan, measure_only=True)
    finally:
        lib.pg_plan_free(plan)


class Layout:
    """A C graph with its memory. Raises ComputeError, AllocationError."""

    def __init__(
        self,
        backend: Backend,
        allocator: Allocator,
        graph: Any,
        inputs: Mapping[str, Input],
        outputs: Sequence[Output],
        collectives: Sequence[Collective] = (),
    ) -> None:
        self._plan = new_plan(backend, graph, collectives)
        try:
            allocator.place(self._plan)
        except BaseException:
            self.free()
            raise
        self._backend, self._allocator = backend, allocator
        self._api = cuda_api() if backend.device.module == "cuda" else None
        if self._api is not None:
            lib.pg_plan_use(self._plan, self._api, are_kernels_on())
        self._generation = allocator.generation
        # Inputs that nothing reads get no memory.
        self._fed = {n: i for n, i in inputs.items() if i.handle.data != ffi.NULL}
        self._in = Transfers([(i.handle, i.feed, i.n_rows, i.n_distinct) for i in self._fed.values()])
        self._read = {o.name: o.handle for o in outputs if not o.is_lazy}
        self._out = Transfers([(o.handle, o.raw, 0, 1) for o in outputs if not o.is_lazy])
        self._lazy = {o.name: Transfers([(o.handle, o.raw, 0, 1)]) for o in outputs if o.is_lazy}

    def free(self) -> None:
        """Free the plan; the memory is the allocator's."""
        lib.pg_plan_free(self._plan)

    def record(self) -> None:
        """On a CUDA card: have the second run's launches recorded, and replayed from then on."""
        if self._api is not None and are_graphs_on() and not lib.pg_plan_replay(self._plan):
            raise AllocationError("no host memory for recorded launches")

    def changed(self, name: str, n_bytes: int) -> None:
        """An input has another size from now on."""
        if name in self._fed:
            self._in.resize(list(self._fed).index(name), n_bytes)

    def forget_recorded(self) -> None:
        """What was recorded is void: tensors have moved."""
        lib.pg_plan_changed(self._plan)

    @property
    def n_fused(self) -> int:
        """Runs of nodes that our own kernels compute as one."""
        return int(lib.pg_plan_n_fused(self._plan))

    @property
    def replay(self) -> tuple[str, str]:
        """`off`, `waiting`, `recorded` or `refused`, and why it was refused."""
        reason = ffi.new("char[256]")
        state = lib.pg_plan_replay_state(self._plan, reason, len(reason))
        return _REPLAY_STATES[state], str(ffi.string(reason).decode("utf-8", "replace"))

    @property
    def is_stale(self) -> bool:
        """Whether the allocator's memory moved since."""
        return self._generation != self._allocator.generation

    def check_ready(self) -> None:
        """Raise ComputeError unless a run may begin."""
        if self._generation != self._allocator.generation:
            raise ComputeError(
                "the memory of this graph moved when a larger graph was laid out; build it anew"
            )
        if self._allocator.in_flight is not None:
            raise ComputeError("a run in this memory was started and not waited for; call its wait() first")

    def run(self) -> int:
        """Send the inputs, compute, read the outputs; returns ggml's status."""
        return int(lib.pg_plan_run(self._plan, self._in.native, self._in.n, self._out.native, self._out.n))

    def start(self) -> int:
        """Send the inputs and begin to compute; returns ggml's status."""
        start = lib.pg_plan_start_interruptible if _ctrl_c_raises() else lib.pg_plan_start
        return int(start(self._plan, self._in.native, self._in.n))

    def read(self) -> None:
        """Wait, and read the outputs."""
        lib.pg_plan_read(self._plan, self._out.native, self._out.n)

    def fetch(self, name: str) -> None:
        """Read an output that runs leave where it is."""
        lib.pg_plan_read(self._plan, self._lazy[name].native, 1)

    def time_nodes(self, backend: Backend, graph: Any) -> list[float]:
        """Send the inputs and run the nodes one by one, without collectives: each one's seconds.

        Raises ComputeError.
        """
        seconds = ffi.new("double[]", lib.ggml_graph_n_nodes(graph))
        self.check(lib.pg_profile_nodes(backend.handle, graph, self._in.native, self._in.n, seconds))
        return list(seconds)

    def join(self, group: Any, rank: int, run: Any) -> None:
        """Make this one rank's of a native group, and describe its part in the C struct `run`."""
        lib.pg_plan_join(self._plan, group, rank)
        run.plan, run.inputs, run.outputs = self._plan, self._in.native, self._out.native
        run.n_inputs, run.n_outputs = self._in.n, self._out.n

    def describe(
        self, run: Any, feeds: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]
    ) -> tuple[Transfers, Transfers]:
        """Describe in the C struct `run` one with other host arrays, which what is returned keeps alive."""
        sent = Transfers([
            (i.handle, feeds[name], i.n_rows, i.n_distinct) for name, i in self._fed.items() if name in feeds
        ])  # fmt: skip
        found = Transfers([(self._read[name], array.view(np.uint8), 0, 1) for name, array in results.items()])
        run.plan, run.inputs, run.outputs = self._plan, sent.native, found.native
        run.n_inputs, run.n_outputs = sent.n, found.n
        return sent, found

    def reads(self, name: str) -> bool:
        """Whether a run reads an input of that name."""
        return name in self._fed

    def input(self, name: str) -> Any:
        """The C tensor of an input that something reads."""
        return self._fed[name].handle

    @property
    def can_feed(self) -> bool:
        """Whether a step can take its tokens from the one before it (see relay.py)."""
        return self._api is not None and bool(lib.pg_plan_can_feed(self._plan))

    def check_rows(self) -> None:
        """Raise ShapeError for a number in an input that is no row of its table, or stands there twice and may not."""
        at, value = self._in.first_bad_row()
        if at >= 0:
            name, bad = list(self._fed.items())[at]
            if 0 <= value < bad.n_rows:
                raise ShapeError(f"input {name!r} holds {value} twice among {bad.n_distinct}, which must differ")
            raise ShapeError(f"input {name!r} holds {value}; the rows are 0 to {bad.n_rows - 1}")

    def check(self, status: int) -> None:
        """Raise the error that a status stands for."""
        if status == _SUCCESS:
            return
        self.check_rows()
        words = ffi.string(lib.ggml_status_to_string(status)).decode()
        raise ComputeError(f"the graph failed: {words} {last_native_error()}".rstrip())


def _ctrl_c_raises() -> bool:
    """Whether an interrupt now would raise KeyboardInterrupt in this thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
