"""A tensor as Python sees it: numpy's order of dimensions, operators, data in and out.

A Tensor never owns memory. Its owner is the Buffer or Graph that made it and must outlive it; a
tensor of a closed owner raises ClosedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ._ffi import ffi, lib
from .dtypes import DType, dequantize, dtype, quantize
from .errors import ClosedError, ShapeError

if TYPE_CHECKING:
    from .graph import Graph


class Owner(Protocol):
    """What holds a tensor's memory."""

    @property
    def closed(self) -> bool: ...


def ggml_ne(shape: Sequence[int]) -> list[int]:
    """Turn a numpy shape into ggml's four lengths, innermost first."""
    if not 1 <= len(shape) <= 4:
        raise ShapeError(f"shape {tuple(shape)} has {len(shape)} dimensions; ggml takes 1 to 4")
    if any(n < 0 for n in shape):
        raise ShapeError(f"shape {tuple(shape)} has a negative length")
    return [int(n) for n in reversed(shape)] + [1] * (4 - len(shape))


class Tensor:
    """A node of a graph or a stretch of a buffer.

    Shapes are in numpy order, outermost first. `x @ w.T` multiplies by a weight stored
    [n_out, n_in]; `+ - * /`, slicing and `.T` read as in numpy.
    """

    __slots__ = ("_handle", "_owner", "graph", "ndim", "transposed_of")

    def __init__(self, handle: Any, ndim: int, owner: Owner, graph: Graph | None, transposed_of: Tensor | None = None) -> None:
        self._handle = handle
        self._owner = owner
        self.graph = graph
        self.ndim = ndim
        self.transposed_of = transposed_of

    @property
    def handle(self) -> Any:
        """The C tensor; raises ClosedError when its owner was closed."""
        if self._owner.closed:
            raise ClosedError("the graph or buffer of this tensor is closed")
        return self._handle

    @property
    def owner(self) -> Owner:
        """The Buffer or Graph that holds the memory."""
        return self._owner

    @property
    def name(self) -> str:
        """The name it was given, or an empty string."""
        return str(ffi.string(self.handle.name).decode("utf-8", "replace"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths, outermost first."""
        ne = self.handle.ne
        return tuple(int(ne[i]) for i in reversed(range(self.ndim)))

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one entry to the next in each dimension, outermost first."""
        nb = self.handle.nb
        return tuple(int(nb[i]) for i in reversed(range(self.ndim)))

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtype(int(self.handle.type))

    @property
    def n_bytes(self) -> int:
        """Bytes from its first to its last element."""
        return int(lib.ggml_nbytes(self.handle))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie without gaps in their order."""
        return bool(lib.ggml_is_contiguous(self.handle))

    def set(self, data: Any, *, offset: int = 0) -> None:
        """Copy data to the device.

        A numpy array of this tensor's shape is converted (and quantised) to its type; uint8 data
        that is not this tensor's type is taken as raw bytes from `offset` on.
        Raises ShapeError when it does not fit.
        """
        handle = self.handle
        if handle.data == ffi.NULL:
            raise ShapeError(f"{self.name or 'this tensor'} has no memory yet; build the graph first")
        raw = host_bytes(data, self.dtype, self.shape, self.name)
        if offset + raw.nbytes > self.n_bytes:
            raise ShapeError(f"{self.name}: {raw.nbytes} bytes at {offset} do not fit {self.n_bytes}")
        lib.ggml_backend_tensor_set(handle, ffi.from_buffer(raw), offset, raw.nbytes)

    def zero(self, *, start_row: int, n_rows: int) -> None:
        """Set rows of a contiguous matrix to zero bytes."""
        row_bytes = self.strides[0]
        end = (start_row + n_rows) * row_bytes
        if self.ndim != 2 or not 0 <= start_row * row_bytes <= end <= self.n_bytes:
            raise ShapeError(f"rows {start_row} to {start_row + n_rows} are outside of {self.shape}")
        lib.ggml_backend_tensor_memset(self.handle, 0, start_row * row_bytes, n_rows * row_bytes)

    def numpy(self) -> np.ndarray:
        """Copy from the device: float32 for float and quantised types, the same type for integers."""
        handle = self.handle
        if handle.data == ffi.NULL:
            raise ShapeError(f"{self.name or 'this tensor'} has no memory yet; build and run the graph first")
        if not self.is_contiguous:
            raise ShapeError(f"{self.name or 'this tensor'} is not contiguous; read its .cont()")
        raw = np.empty(self.n_bytes, np.uint8)
        lib.ggml_backend_tensor_get(handle, ffi.from_buffer(raw), 0, raw.nbytes)
        return as_numpy(raw, self.dtype, self.shape)

    def __matmul__(self, other: Tensor) -> Tensor:
        if other.transposed_of is not None:
            return ops.mul_mat(other.transposed_of, self)
        return ops.mul_mat(ops.cont(other.T), self)

    def __add__(self, other: Tensor | float) -> Tensor:
        return ops.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Tensor | float) -> Tensor:
        return ops.add(self, -other) if isinstance(other, (int, float)) else ops.sub(self, other)

    def __rsub__(self, other: float) -> Tensor:
        return ops.add(ops.neg(self), other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return ops.scale(self, other) if isinstance(other, (int, float)) else ops.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return ops.scale(self, 1.0 / other) if isinstance(other, (int, float)) else ops.div(self, other)

    def __neg__(self) -> Tensor:
        return ops.neg(self)

    def __getitem__(self, index: Any) -> Tensor:
        return ops.slice_view(self, index)

    @property
    def T(self) -> Tensor:
        """This tensor with its last two dimensions swapped, without a copy."""
        axes = list(range(max(self.ndim, 2)))
        axes[-1], axes[-2] = axes[-2], axes[-1]
        swapped = ops.permute(self, axes)
        swapped.transposed_of = self
        return swapped

    def reshape(self, *shape: int) -> Tensor:
        """This tensor's elements in another shape; it must be contiguous."""
        return ops.reshape(self, shape)

    def permute(self, *axes: int) -> Tensor:
        """The dimensions in another order, as numpy's transpose(axes), without a copy."""
        return ops.permute(self, axes)

    def cont(self) -> Tensor:
        """A contiguous copy."""
        return ops.cont(self)

    def cast(self, kind: str | DType) -> Tensor:
        """A copy in another type."""
        return ops.cast(self, kind)

    def __repr__(self) -> str:
        if self._owner.closed:
            return "Tensor(closed)"
        return f"Tensor({self.name!r}, {self.shape}, {self.dtype.name})"


def host_bytes(data: Any, kind: DType, shape: Sequence[int], name: str = "") -> np.ndarray:
    """Turn host data into the bytes of a tensor of this type and shape."""
    array = np.ascontiguousarray(data)
    if array.dtype == np.uint8 and kind.numpy != np.uint8 and array.ndim <= 1:
        return array.reshape(-1)
    if tuple(array.shape) != tuple(shape):
        raise ShapeError(f"{name or 'tensor'} has shape {tuple(shape)}; the data has {array.shape}")
    if kind.numpy is not None:
        return np.ascontiguousarray(array, kind.numpy).reshape(-1).view(np.uint8)
    return quantize(np.ascontiguousarray(array, np.float32), kind)


def as_numpy(raw: np.ndarray, kind: DType, shape: Sequence[int]) -> np.ndarray:
    """Turn a tensor's bytes into an array: float32, or the integer type itself."""
    if kind.numpy is not None:
        values = raw.view(kind.numpy).reshape(tuple(shape))
        return values.astype(np.float32) if kind.numpy == np.float16 else values
    return dequantize(raw, kind, tuple(shape))


from . import ops  # noqa: E402  (ops needs Tensor, Tensor's operators need ops)
