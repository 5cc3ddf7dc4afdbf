"""A graph on one backend: built once, laid out once, run many times.

Inputs and everything computed live in an allocator's buffer; weights and states live in buffers of
their own and keep their values between runs. Graphs that share an allocator overlap in memory, so
one must be read before the next runs. One thread uses a graph at a time; a run holds no GIL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._ffi import ffi, last_native_error, lib
from .backend import Backend
from .buffer import Buffer
from .dtypes import DType, dtype
from .errors import AllocationError, ClosedError, ComputeError, ShapeError
from .tensor import Tensor, as_numpy, ggml_ne, host_bytes

_MAX_NODES = 4096


class Allocator:
    """Memory for the intermediate results of one or more graphs of a backend.

    `generation` changes when the memory moved: graphs laid out before must be built anew.
    """

    def __init__(self, backend: Backend) -> None:
        self.handle: Any = lib.ggml_gallocr_new(lib.ggml_backend_dev_buffer_type(backend.device.handle))
        self.backend = backend
        self.generation = 0

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device."""
        return int(lib.ggml_gallocr_get_buffer_size(self.handle, 0)) if self.handle else 0

    def close(self) -> None:
        """Free the memory; the graphs laid out in it must not run any more."""
        if self.handle:
            lib.ggml_gallocr_free(self.handle)
            self.handle = None

    def place(self, plan: Any, *, measure_only: bool = False) -> None:
        """Lay a native plan out, growing the memory if it must."""
        before = self.n_bytes
        call = lib.pg_plan_reserve if measure_only else lib.pg_plan_layout
        if not call(plan, self.handle):
            reason = last_native_error()
            raise AllocationError(
                f"{self.backend.device.name}: no memory for a graph's results; {self.backend.device.memory_free} bytes are free"
                + (f" ({reason})" if reason else "")
            )
        if self.n_bytes != before:
            self.generation += 1


@dataclass(frozen=True)
class Collective:
    """A cut of a rank's graph: after its first `end_node` nodes all ranks take part in `op`."""

    end_node: int
    op: int
    tensor: Tensor
    other: Tensor | None = None
    peer: int = 0


class Graph:
    """Operations over named inputs, with named outputs.

    `feeds` and `results` are the host arrays behind `step()`: fill the feeds in place, call step(),
    read the results. `run(**inputs)` is the same in one convenient call. Graphs given the same dict of
    `feeds` share their host arrays by input name.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        max_nodes: int = _MAX_NODES,
        allocator: Allocator | None = None,
        feeds: dict[str, np.ndarray] | None = None,
    ) -> None:
        self.backend = backend
        self.feeds: dict[str, np.ndarray] = {} if feeds is None else feeds
        self.results: dict[str, np.ndarray] = {}
        self._allocator = allocator or Allocator(backend)
        self._owns_allocator = allocator is None
        self._max_nodes, self._n_nodes = max_nodes, 0
        params = ffi.new("struct ggml_init_params *")
        params.mem_size = (2 * max_nodes + 64) * lib.ggml_tensor_overhead() + lib.ggml_graph_overhead_custom(2 * max_nodes, False)
        params.no_alloc = True
        self._ctx: Any = lib.ggml_init(params[0])
        self._graph = lib.ggml_new_graph_custom(self._ctx, 2 * max_nodes, False)
        self._buffers: list[Buffer] = []
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._raw_results: dict[str, np.ndarray] = {}
        self.collectives: list[Collective] = []
        self._plan: Any = None
        self._generation = -1

    @property
    def context(self) -> Any:
        """The C context for one new node; raises ShapeError when the graph is full or built."""
        if self._ctx is None:
            raise ClosedError("this graph is closed")
        if self._plan is not None:
            raise ShapeError("this graph is built already; make a new one to add operations")
        self._n_nodes += 1
        if self._n_nodes > self._max_nodes:
            raise ShapeError(f"more than {self._max_nodes} nodes; give Graph(max_nodes=...)")
        return self._ctx

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._ctx is None

    def input(self, name: str, shape: Sequence[int], kind: str | DType = "f32") -> Tensor:
        """Declare an input that every run sets."""
        self._check_name(name)
        kind = dtype(kind)
        if kind.numpy is None:
            raise ShapeError(f"input {name!r} cannot be {kind.name}; use a type that numpy has")
        handle = lib.ggml_new_tensor(self.context, kind.id, 4, ffi.new("int64_t[4]", ggml_ne(shape)))
        lib.ggml_set_name(handle, name.encode()[:63])
        lib.ggml_set_input(handle)
        self._inputs[name] = Tensor(handle, len(shape), self, self)
        feed = self.feeds.setdefault(name, np.zeros(tuple(shape), kind.numpy))
        if feed.shape != tuple(shape) or feed.dtype != kind.numpy:
            raise ShapeError(f"input {name!r} is {feed.shape} {feed.dtype} in another graph and {tuple(shape)} {kind.name} here")
        return self._inputs[name]

    def phantom(self, name: str, shape: Sequence[int], kind: str | DType) -> Tensor:
        """A tensor without memory, to ask `backend.supports()` about an operation on it."""
        handle = lib.ggml_new_tensor(self.context, dtype(kind).id, 4, ffi.new("int64_t[4]", ggml_ne(shape)))
        lib.ggml_set_name(handle, name.encode()[:63])
        return Tensor(handle, len(shape), self, self)

    def weight(self, data: Any, *, type: str | DType | None = None, name: str = "") -> Tensor:
        """Upload a constant: a numpy array (quantised to `type` if given) or a tensor of a GGUF file."""
        if hasattr(data, "type") and hasattr(data, "data") and not isinstance(data, np.ndarray):
            if type is None or dtype(type) == data.type:
                return self._static(name or data.name, data.shape, data.type, data.data)
            return self._static(name or data.name, data.shape, dtype(type), data.numpy())
        array = np.asarray(data)
        kind = dtype(type) if type is not None else dtype(array.dtype if array.dtype != np.float64 else np.dtype("f4"))
        return self._static(name, array.shape, kind, array)

    def state(self, name: str, shape: Sequence[int], kind: str | DType = "f32") -> Tensor:
        """A tensor of zeros whose value stays from run to run; write it with set_rows or copy."""
        return self._static(name, shape, dtype(kind), None)

    def constant(self, value: float) -> Tensor:
        """A single float32 number."""
        return self.weight(np.full((1,), value, np.float32))

    def use(self, tensor: Tensor) -> Tensor:
        """A tensor of a buffer as an operand of this graph."""
        return Tensor(tensor.handle, tensor.ndim, tensor.owner, self)

    def _static(self, name: str, shape: Sequence[int], kind: DType, data: Any) -> Tensor:
        if self._ctx is None:
            raise ClosedError("this graph is closed")
        buffer = Buffer(self.backend, {name: (shape, kind)}, weights=data is not None)
        self._buffers.append(buffer)
        if data is None:
            buffer.clear()
        else:
            buffer[name].set(host_bytes(data, kind, tuple(shape), name))
        return self.use(buffer[name])

    def output(self, name: str, tensor: Tensor) -> Tensor:
        """Name a node that is read back after each run."""
        self._check_name(name)
        if not tensor.is_contiguous:
            tensor = tensor.cont()
        lib.ggml_set_name(tensor.handle, name.encode()[:63])
        lib.ggml_set_output(tensor.handle)
        self._outputs[name] = tensor
        return self.do(tensor)

    def do(self, tensor: Tensor) -> Tensor:
        """Compute this node in each run, for its effect on a state."""
        if self._plan is not None:
            raise ShapeError("this graph is built already")
        lib.ggml_build_forward_expand(self._graph, tensor.handle)
        return tensor

    def _check_name(self, name: str) -> None:
        if name in self._inputs or name in self._outputs:
            raise ShapeError(f"the graph has an input or output {name!r} already")

    def reserve(self) -> None:
        """Size the shared allocator for this graph without placing it there."""
        plan = self._new_plan()
        try:
            self._allocator.place(plan, measure_only=True)
        finally:
            lib.pg_plan_free(plan)

    def build(self) -> Graph:
        """Check every node with the device and lay the graph out; run() does it when needed.

        Raises ComputeError naming the operation that the device lacks, AllocationError.
        """
        if self._plan is not None:
            return self
        plan = self._new_plan()
        try:
            self._allocator.place(plan)
        except AllocationError:
            lib.pg_plan_free(plan)
            raise
        self._plan, self._generation = plan, self._allocator.generation
        for name, tensor in self._outputs.items():
            raw = np.empty(tensor.n_bytes, np.uint8)
            self._raw_results[name] = raw
            if tensor.dtype.numpy is not None:
                self.results[name] = raw.view(tensor.dtype.numpy).reshape(tensor.shape)
        fed = {n: t for n, t in self._inputs.items() if t.handle.data != ffi.NULL}
        self._in = _transfers({n: (t, self.feeds[n]) for n, t in fed.items()})
        self._out = _transfers({n: (t, self._raw_results[n]) for n, t in self._outputs.items()})
        self._n_in, self._n_out = len(fed), len(self._outputs)
        return self

    def _new_plan(self) -> Any:
        if self._ctx is None:
            raise ClosedError("this graph is closed")
        if not self._outputs and not lib.ggml_graph_n_nodes(self._graph):
            raise ShapeError("the graph computes nothing; name an output")
        at = ffi.new("int *")
        plan = lib.pg_plan_new(self.backend.handle, self._graph, self._steps(), len(self.collectives), at)
        if plan == ffi.NULL:
            node = lib.ggml_graph_node(self._graph, at[0])
            raise ComputeError(
                f"{self.backend.device.name} cannot compute {ffi.string(lib.ggml_op_desc(node)).decode()} "
                f"{ffi.string(node.name).decode()!r} with result {[int(n) for n in node.ne]} (innermost first)"
            )
        return plan

    def _steps(self) -> Any:
        steps = ffi.new("pg_step[]", max(1, len(self.collectives)))
        for step, c in zip(steps, self.collectives):
            step.end_node, step.op, step.peer = c.end_node, c.op, c.peer
            step.tensor = c.tensor.handle
            step.other = ffi.NULL if c.other is None else c.other.handle
        return steps

    @property
    def is_stale(self) -> bool:
        """Whether the shared allocator's memory moved since this graph was laid out."""
        return self._plan is not None and self._generation != self._allocator.generation

    def step(self) -> dict[str, np.ndarray]:
        """Send the feeds, compute, fill the results. The arrays are the same in every call."""
        self.check_fresh()
        _check(lib.pg_plan_run(self._plan, self._in, self._n_in, self._out, self._n_out))
        return self.results

    def run(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Set the inputs, compute, return copies of the outputs (float32 for quantised ones).

        Raises ShapeError for a missing, unknown or misshapen input.
        """
        self.start(**inputs)
        return self.wait()

    def start(self, **inputs: Any) -> None:
        """Begin a run; wait() ends it. Host work may go on where the device computes by itself."""
        self.build()
        self.fill(inputs)
        self.check_fresh()
        _check(lib.pg_plan_start(self._plan, self._in, self._n_in))

    def wait(self) -> dict[str, np.ndarray]:
        """Wait for the run that start() began and return copies of the outputs."""
        lib.pg_plan_read(self._plan, self._out, self._n_out)
        return self.copy_results()

    def copy_results(self) -> dict[str, np.ndarray]:
        """Copies of the outputs of the last run, float32 for quantised ones."""
        return {n: as_numpy(self._raw_results[n].copy(), t.dtype, t.shape) for n, t in self._outputs.items()}

    def join(self, group: Any, rank: int, run: Any) -> None:
        """Make the built graph one rank's of a native group and describe its part in `run`."""
        lib.pg_plan_join(self._plan, group, rank)
        run.plan, run.inputs, run.outputs = self._plan, self._in, self._out
        run.n_inputs, run.n_outputs = self._n_in, self._n_out

    def fill(self, inputs: Mapping[str, Any]) -> None:
        """Copy values into the feeds; every input must be given.

        Raises ShapeError for a missing, unknown or misshapen input.
        """
        if inputs.keys() != self._inputs.keys():
            raise ShapeError(f"inputs {sorted(inputs)} were given; the graph has {sorted(self._inputs)}")
        for name, value in inputs.items():
            array = np.asarray(value)
            if array.shape != self.feeds[name].shape:
                raise ShapeError(f"input {name!r} has shape {self.feeds[name].shape}; {array.shape} was given")
            np.copyto(self.feeds[name], array, casting="same_kind" if array.dtype.kind == "f" else "unsafe")

    def check_fresh(self) -> None:
        """Build if needed; raise ClosedError or ComputeError where a run would use freed memory."""
        if self._ctx is None:
            raise ClosedError("this graph is closed")
        self.build()
        if self.is_stale:
            raise ComputeError("the memory of this graph moved when a larger graph was laid out; build it anew")

    @property
    def n_nodes(self) -> int:
        """Nodes that a run computes."""
        return int(lib.ggml_graph_n_nodes(self._graph))

    def close(self) -> None:
        """Free the graph, its weights and states. Closing twice is allowed."""
        if self._ctx is None:
            return
        lib.pg_plan_free(self._plan if self._plan is not None else ffi.NULL)
        lib.ggml_free(self._ctx)
        self._ctx = self._plan = None
        for buffer in self._buffers:
            buffer.close()
        if self._owns_allocator:
            self._allocator.close()

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _transfers(arrays: Mapping[str, tuple[Tensor, np.ndarray]]) -> Any:
    transfers = ffi.new("pg_transfer[]", max(len(arrays), 1))
    for transfer, (tensor, array) in zip(transfers, arrays.values()):
        transfer.tensor = tensor.handle
        transfer.data = ffi.from_buffer(array)
        transfer.size = array.nbytes
    return transfers


def _check(status: int) -> None:
    if status != lib.GGML_STATUS_SUCCESS:
        words = ffi.string(lib.ggml_status_to_string(status)).decode()
        raise ComputeError(f"the graph failed: {words} {last_native_error()}".rstrip())
