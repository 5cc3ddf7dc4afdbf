"""What a graph is made of: inputs, weights, states, the nodes on them, and the outputs.

It keeps what it uses alive and hears when any of that is closed. Knows nothing of runs; once it is laid out no node can
be added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .allocator import Allocator
from .backend import Backend
from .buffer import Buffer
from .dtypes import DType, dtype
from .errors import ClosedError, ShapeError
from .layout import Collective, Layout, Output
from .lifetime import Closable
from .tensor import Tensor, check_storable, ggml_ne, host_bytes
from .windows import Windows

_MAX_NODES = 4096
# ggml walks a graph by recursion: a longer chain of nodes could overflow a thread's stack.
_MOST_NODES = 32768


class Definition(Closable):
    """A graph under construction: inputs, operations on them, weights and states, outputs."""

    is_plain = True

    def __init__(
        self,
        backend: Backend,
        *,
        max_nodes: int = _MAX_NODES,
        allocator: Allocator | None = None,
        feeds: dict[str, np.ndarray] | None = None,
        replay: bool = True,
    ) -> None:
        if not 1 <= max_nodes <= _MOST_NODES:
            raise ShapeError(f"max_nodes = {max_nodes}; 1 to {_MOST_NODES} are possible")
        self.backend = backend
        backend.check_open()
        self._allocator = allocator or Allocator(backend)
        self._allocator.check_open()
        self._owns_allocator = allocator is None
        self._max_nodes, self._n_nodes = max_nodes, 0
        self._may_replay = replay
        self._leafs: set[int] = set()
        params = ffi.new("struct ggml_init_params *")
        params.mem_size = (2 * max_nodes + 64) * lib.ggml_tensor_overhead()
        params.mem_size += lib.ggml_graph_overhead_custom(2 * max_nodes, False)
        params.no_alloc = True
        self._ctx: Any = lib.ggml_init(params[0])
        self._graph: Any = lib.ggml_new_graph_custom(self._ctx, 2 * max_nodes, False)
        self._buffers: list[Buffer] = []
        self._used: dict[int, Closable] = {}
        self._inputs: dict[str, Any] = {}
        self._limits: dict[str, tuple[int, int]] = {}
        self._windows = Windows()
        self._outputs: dict[str, Output] = {}
        self._feeds: dict[str, np.ndarray] = {} if feeds is None else feeds
        self._results: dict[str, np.ndarray] = {}
        self.feeds: Mapping[str, np.ndarray] = MappingProxyType(self._feeds)
        self.results: Mapping[str, np.ndarray] = MappingProxyType(self._results)
        self.collectives: list[Collective] = []
        self._layout: Layout | None = None
        self._lost = ""
        self._open(backend.lock)
        for owner in (backend, self._allocator):
            self._hold(owner)

    # What ends and what it depends on.

    def _hold(self, owner: Closable) -> None:
        self._used[id(owner)] = owner
        owner.users.add(self)

    def lose(self, description: str) -> None:
        """Hear that something this graph uses was closed: it cannot run any more."""
        self._lost = self._lost or description

    def check_open(self) -> None:
        """Raise ClosedError when this graph or something that it uses was closed."""
        if self.closed:
            raise ClosedError("this graph is closed")
        if self._lost:
            raise ClosedError(f"the {self._lost} that this graph uses is closed")

    def adopt(self, tensor: Tensor) -> None:
        """Take a tensor of a buffer as an operand, and keep its buffer alive.

        Raises ShapeError for a node of another graph, and for memory that this graph's device cannot reach.
        """
        owner, handle = tensor.owner, tensor.handle
        if isinstance(owner, Definition):
            raise ShapeError(
                f"{tensor!r} is a node of another graph; read it there and give it to an input here"
            )
        if id(owner) not in self._used:
            device = self.backend.device
            if not lib.ggml_backend_dev_supports_buft(device.handle, owner.buffer_type):
                raise ShapeError(
                    f"{tensor!r} lies on {owner.backend.device.name}, where {device.name} cannot compute"
                )
            self._hold(owner)
        self._leafs.add(int(ffi.cast("uintptr_t", handle)))
        if len(self._leafs) > self._max_nodes:
            raise ShapeError(f"more than {self._max_nodes} weights; give Graph(max_nodes=...)")

    @property
    def context(self) -> Any:
        """The C context for one new node; raises ShapeError when the graph is full or built."""
        self._check_unbuilt()
        self._n_nodes += 1
        if self._n_nodes > self._max_nodes:
            raise ShapeError(f"more than {self._max_nodes} nodes; give Graph(max_nodes=...)")
        return self._ctx

    def _check_unbuilt(self) -> None:
        self.check_open()
        if self._layout is not None:
            raise ShapeError("this graph is built already; make a new one to add operations")

    # What a graph is made of.

    def input(self, name: str, shape: Sequence[int], kind: str | DType = "f32") -> Tensor:
        """Declare an input that every run sets."""
        self._check_name(name)
        kind = dtype(kind)
        if kind.numpy is None:
            raise ShapeError(f"input {name!r} cannot be {kind.name}; use a type that numpy has")
        tensor = self.phantom(name, shape, kind)
        feed = self._feeds.get(name)
        if feed is None:
            feed = self._feeds[name] = np.zeros(tensor.shape, kind.numpy)
        elif feed.shape != tensor.shape or feed.dtype != kind.numpy or not feed.flags.c_contiguous:
            raise ShapeError(f"input {name!r} is {feed.shape} {feed.dtype} in another graph, here {tensor!r}")
        lib.ggml_set_input(tensor.handle)
        self._inputs[name] = tensor.handle
        return tensor

    def phantom(self, name: str, shape: Sequence[int], kind: str | DType) -> Tensor:
        """A tensor without memory, to ask `backend.supports()` about an operation on it."""
        ne, kind = ggml_ne(shape), dtype(kind)
        check_storable(name, shape, kind)
        handle = lib.ggml_new_tensor(self.context, kind.id, 4, ffi.new("int64_t[4]", ne))
        lib.ggml_set_name(handle, name.encode()[:63])
        return Tensor(handle, len(shape), self, self)

    def let_move(self, tensor: Tensor, axis: int, *, step: int = 0) -> Tensor:
        """Make a view of a state a window that move() shifts and shortens along this axis.

        `step` is the number of bytes that its start moves a unit; an input, which has no start, has step 0.
        """
        self._check_unbuilt()
        self._windows.add(tensor, axis % tensor.ndim, step)
        return tensor

    def is_input(self, handle: Any) -> bool:
        """Whether a C tensor is an input of this graph."""
        return any(handle == own for own in self._inputs.values())

    def limit_input(self, handle: Any, n_rows: int, n_distinct: int = 1) -> None:
        """Let every run check that the numbers in this input are rows of a table of `n_rows`.

        None may stand twice among each `n_distinct` of them.
        """
        name = next(n for n, own in self._inputs.items() if handle == own)
        rows, distinct = self._limits.get(name, (n_rows, 1))
        self._limits[name] = min(n_rows, rows), max(n_distinct, distinct)

    def weight(self, data: Any, *, type: str | DType | None = None, name: str = "") -> Tensor:
        """Upload a constant: a numpy array (quantised to `type` if given) or a tensor of a GGUF file."""
        if hasattr(data, "type") and hasattr(data, "data") and not isinstance(data, np.ndarray):
            if type is None or dtype(type) == data.type:
                return self._static(name or data.name, data.shape, data.type, data.data)
            return self._static(name or data.name, data.shape, dtype(type), data.numpy())
        array = np.asarray(data)
        default = np.dtype("f4") if array.dtype == np.float64 else array.dtype
        return self._static(name, array.shape, dtype(default if type is None else type), array)

    def state(self, name: str, shape: Sequence[int], kind: str | DType = "f32") -> Tensor:
        """A tensor of zeros whose value stays from run to run; write it with set_rows or copy."""
        return self._static(name, shape, dtype(kind), None)

    def constant(self, value: float) -> Tensor:
        """A single float32 number."""
        return self.weight(np.full((1,), value, np.float32))

    def use(self, tensor: Tensor) -> Tensor:
        """A tensor of a buffer as an operand of this graph."""
        self.check_open()
        if tensor.owner is not self:
            self.adopt(tensor)
        return Tensor(tensor.handle, tensor.ndim, tensor.owner, self)

    def _static(self, name: str, shape: Sequence[int], kind: DType, data: Any) -> Tensor:
        self.check_open()
        buffer = Buffer(self.backend, {name: (shape, kind)}, weights=data is not None)
        try:
            if data is None:
                buffer.clear()
            else:
                raw = host_bytes(data, kind, tuple(shape), name)
                if raw.nbytes != buffer[name].n_bytes:
                    raise ShapeError(f"{name or 'weight'}: {raw.nbytes} bytes for {buffer[name]!r}")
                buffer[name].set(raw)
        except BaseException:
            buffer.close()
            raise
        self._buffers.append(buffer)
        return self.use(buffer[name])

    def output(self, name: str, tensor: Tensor, *, lazy: bool = False) -> Tensor:
        """Name a node that is read back after each run; with `lazy` only when fetch() asks for it."""
        self._check_name(name)
        self._check_own(tensor)
        if not tensor.is_contiguous or tensor.handle.op == lib.GGML_OP_NONE:
            tensor = tensor.cont()
        lib.ggml_set_name(tensor.handle, name.encode()[:63])
        lib.ggml_set_output(tensor.handle)
        if tensor.is_view:  # or the memory that it looks at would be used again
            lib.ggml_set_output(tensor.handle.view_src)
        self.do(tensor)
        raw = np.empty(tensor.n_bytes, np.uint8)
        self._outputs[name] = Output(tensor.handle, tensor.dtype, tensor.shape, raw, name, lazy)
        if tensor.dtype.numpy is not None:
            self._results[name] = raw.view(tensor.dtype.numpy).reshape(tensor.shape)
        return tensor

    def read_part(self, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Name the first elements of a node or leaf, in this shape, as an output."""
        self._check_name(name)
        lib.ggml_set_output(tensor.handle)
        n_bytes = int(np.prod(shape)) * tensor.dtype.type_size
        raw = np.empty(n_bytes, np.uint8)
        self._outputs[name] = Output(tensor.handle, tensor.dtype, shape, raw, name)
        if tensor.dtype.numpy is not None:
            self._results[name] = raw.view(tensor.dtype.numpy).reshape(shape)

    def do(self, tensor: Tensor) -> Tensor:
        """Compute this node in each run, for its effect on a state."""
        self._check_unbuilt()
        self._check_own(tensor)
        lib.ggml_build_forward_expand(self._graph, tensor.handle)
        return tensor

    def _check_own(self, tensor: Tensor) -> None:
        if tensor.graph is not self:
            raise ShapeError(
                f"{tensor!r} is not of this graph; begin with graph.use(...) or graph.input(...)"
            )

    def _check_name(self, name: str) -> None:
        self._check_unbuilt()
        if name in self._inputs or name in self._outputs:
            raise ShapeError(f"the graph has an input or output {name!r} already")

    @property
    def is_stale(self) -> bool:
        """Whether the shared allocator's memory moved since this graph was laid out."""
        return self._layout is not None and self._layout.is_stale

    def check_transfer(self, tensor: Tensor, *, write: bool) -> None:
        """Raise unless a node's memory can be read or written from the host now."""
        self.check_open()
        handle = tensor.handle
        if self.is_stale or handle.data == ffi.NULL:
            raise ShapeError(f"{tensor!r} has no memory now; build and run the graph first")
        root = handle.view_src if tensor.is_view else handle
        usage = lib.ggml_backend_buffer_get_usage(root.buffer)
        if usage == lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE:
            if write:
                raise ShapeError(f"{tensor!r} is computed; set states, and give values to inputs in run()")
            if not root.flags & lib.GGML_TENSOR_FLAG_OUTPUT:
                raise ShapeError(
                    f"{tensor!r} is no output: its memory is used again; name it by graph.output"
                )
        elif write and usage == lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS:
            raise ShapeError(f"{tensor!r} looks at a weight, which is only read")
