"""Windows of a graph: rows of states that it sees, which may begin elsewhere and be fewer from run to run.

A graph is laid out for the longest window; moving it then costs microseconds where building it anew costs
milliseconds. Belongs to one graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ._ffi import ffi, lib
from .errors import ShapeError
from .tensor import Tensor


class Window(NamedTuple):
    """A view or an input, its axis (numpy's order) that is as long as the window, and bytes a unit of its start."""

    tensor: Tensor
    axis: int
    step: int


class Windows:
    """All windows of a graph; they move together. `start` and `length` say where they are."""

    def __init__(self) -> None:
        self.start = 0
        self.length = 0
        self.longest = 0
        self.first, self.last = -(2**62), 2**62  # starts at which all windows lie within their states
        self._windows: list[Window] = []
        self._native: Any = None
        self._reader: list[str | None] = []

    def add(self, tensor: Tensor, axis: int, step: int) -> None:
        """Take a tensor in; raises ShapeError where its window is not as long as the others'."""
        length = tensor.shape[axis]
        if self._windows and length != self.longest:
            raise ShapeError(f"{tensor!r} has {length} along axis {axis}; the graph's windows are {self.longest} long")
        self.length = self.longest = length
        self._windows.append(Window(tensor, axis, step))
        if step:
            t = tensor.handle
            end = t.view_offs + t.nb[0] + sum((t.ne[i] - 1) * t.nb[i] for i in range(1, 4))
            end += (tensor.shape[-1] // tensor.dtype.block_size - 1) * t.nb[0]
            self.first = max(self.first, -(int(t.view_offs) // step))
            self.last = min(self.last, (int(lib.ggml_nbytes(t.view_src)) - int(end)) // step)

    @property
    def native(self) -> Any:
        """The C array; a graph gets no more windows after its first use."""
        if self._native is None:
            self._native = ffi.new("pg_window[]", max(1, len(self._windows)))
            for item, window in zip(self._native, self._windows):
                item.tensor, item.step = window.tensor.handle, window.step
                item.dim = window.tensor.ndim - 1 - window.axis
        return self._native

    def reader(self, graph: Any) -> str | None:
        """An operation of the finished graph for whose sake they cannot move; None if all can do without."""
        if not self._reader:
            name = ffi.new("const char **")
            can_move = lib.pg_windows_can_move(graph, self.native, len(self._windows), name)
            self._reader.append(None if can_move else ffi.string(name[0]).decode())
        return self._reader[0]

    def move(self, graph: Any, start: int, length: int) -> None:
        """Move all of them; raises ShapeError for a length that was not laid out, or a start beyond a state."""
        if not self._windows:  # a graph that only writes states, as a last layer's does where nobody reads its result
            self.start, self.length = start, length
            return
        if not self.first <= start <= self.last:
            room = f"{self.first} to {self.last}"
            raise ShapeError(f"a window's start moved by {start} units; its state has room for {room}")
        if not 1 <= length <= self.longest:
            raise ShapeError(f"a window of {length}; the graph was laid out for 1 to {self.longest}")
        lib.pg_windows_move(graph, self.native, len(self._windows), start - self.start, length)
        self.start, self.length = start, length

    def shape_of(self, handle: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of an input as it is now."""
        for window in self._windows:
            if window.tensor.handle == handle:
                return (*shape[: window.axis], self.length, *shape[window.axis + 1 :])
        return shape


def resized(base: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The first elements of an array as another shape, packed."""
    return base.reshape(-1)[: int(np.prod(shape))].reshape(shape)
