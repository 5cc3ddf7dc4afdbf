"""A tensor as Python sees it: numpy's order of dimensions, operators, data in and out.

A Tensor never owns memory. Its owner is the Buffer or Graph that made it, which it keeps alive; a tensor of a closed
owner raises ClosedError.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._ffi import ffi, lib
from .dtypes import DTYPES, DType, dequantize, dtype, quantize
from .errors import ClosedError, ShapeError

if TYPE_CHECKING:
    from .buffer import Buffer
    from .definition import Definition

MAX_ELEMENTS = 2**56  # ggml counts bytes in 64 bits; no type takes more than 8 an element
WORD_BYTES = 4  # Vulkan fills memory in whole words

# Some types exist only within kernels, as the form that activations take there.
_STORABLE = {
    t.name for t in DTYPES if not t.is_quantized or lib.ggml_get_type_traits(t.id).to_float != ffi.NULL
}
# What ggml multiplies by.
MATRIX_TYPES = {t.name for t in DTYPES if t.name in ("f32", "f16", "bf16") or t.is_quantized} & _STORABLE


def ggml_ne(shape: Sequence[int]) -> list[int]:
    """Turn a numpy shape into ggml's four lengths, innermost first.

    Raises ShapeError for a shape that ggml cannot hold.
    """
    try:
        lengths = [operator.index(n) for n in shape]
    except TypeError as error:
        raise ShapeError(f"shape {shape!r} must be a sequence of 1 to 4 integers") from error
    if not 1 <= len(lengths) <= 4:
        raise ShapeError(f"shape {tuple(lengths)} has {len(lengths)} dimensions; ggml takes 1 to 4")
    if min(lengths) < 1 or math.prod(lengths) > MAX_ELEMENTS:
        raise ShapeError(
            f"shape {tuple(lengths)}: lengths must be 1 or more, and at most 2^56 elements in all"
        )
    return [*reversed(lengths), *[1] * (4 - len(lengths))]


def check_storable(name: str, shape: Sequence[int], kind: DType) -> None:
    """Raise ShapeError when a tensor of this shape cannot have this type."""
    if kind.name not in _STORABLE:
        raise ShapeError(f"{name or 'tensor'}: {kind.name} is for activations within kernels; use q8_0")
    if shape[-1] % kind.block_size:
        raise ShapeError(
            f"{name or 'tensor'}: rows of {shape[-1]} do not fit {kind.name}, whose blocks hold {kind.block_size}"
        )


class Tensor:
    """A node of a graph or a stretch of a buffer.

    Shapes are in numpy order, outermost first. `x @ w.T` multiplies by a weight stored [n_out, n_in]; `+ - * /`,
    slicing and `.T` read as in numpy.
    """

    __slots__ = ("_handle", "graph", "ndim", "owner", "transposed_of")
    __array_ufunc__ = None  # numpy leaves `number * tensor` to the operators here

    def __init__(
        self,
        handle: Any,
        ndim: int,
        owner: Buffer | Definition,
        graph: Definition | None,
        transposed_of: Tensor | None = None,
    ) -> None:
        self._handle = handle
        self.owner = owner
        self.graph = graph
        self.ndim = ndim
        self.transposed_of = transposed_of

    @property
    def handle(self) -> Any:
        """The C tensor; raises ClosedError when its owner was closed."""
        if self.owner.closed:
            raise ClosedError(f"the {self.owner.description} that held this tensor is closed")
        if self._handle is None:
            self._handle = self._transposed_handle()
        return self._handle

    def _transposed_handle(self) -> Any:
        """The view that `.T` stands for: made only when something besides @ asks for it."""
        source = self.transposed_of
        assert source is not None
        if self.graph is None or source.dtype.block_size > 1:
            raise ShapeError("this transposed matrix can only stand on the right of @")
        axes = list(range(self.ndim))
        axes[-1], axes[-2] = axes[-2], axes[-1]
        self.owner = self.graph
        return shapes.permute(source, axes).handle

    @property
    def name(self) -> str:
        """The name it was given, or an empty string."""
        return str(ffi.string(self.handle.name).decode("utf-8", "replace"))

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths, outermost first."""
        if self._handle is None and self.transposed_of is not None:
            *outer, rows, columns = (1, *self.transposed_of.shape)[-max(2, self.ndim) :]
            return (*outer, columns, rows)
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
        if self._handle is None and self.transposed_of is not None:
            return self.transposed_of.dtype
        return dtype(int(self.handle.type))

    @property
    def n_bytes(self) -> int:
        """Bytes from its first to its last element."""
        return int(lib.ggml_nbytes(self.handle))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie without gaps in their order."""
        return bool(lib.ggml_is_contiguous(self.handle))

    @property
    def is_view(self) -> bool:
        """Whether the memory belongs to another tensor."""
        return bool(self.handle.view_src != ffi.NULL)

    def _memory(self, *, write: bool) -> Any:
        """The C tensor, ready for a transfer of its bytes."""
        handle = self.handle
        self.owner.check_transfer(self, write=write)
        if not self.is_contiguous:
            raise ShapeError(f"{self.name or 'this tensor'} is not contiguous; use its .cont()")
        return handle

    def set(self, data: Any, *, offset: int = 0) -> None:
        """Copy data to the device.

        A numpy array of this tensor's shape is converted (and quantised) to its type; uint8 data
        that is not this tensor's type is taken as raw bytes from `offset` on.
        Raises ShapeError when it does not fit.
        """
        handle = self._memory(write=True)
        raw = host_bytes(data, self.dtype, self.shape, self.name)
        if offset < 0 or offset + raw.nbytes > self.n_bytes:
            raise ShapeError(f"{self.name}: {raw.nbytes} bytes at {offset} do not fit {self.n_bytes}")
        if not self.owner.is_plain and raw.nbytes != self.n_bytes:
            raise ShapeError(
                f"{self.name}: this buffer type takes tensors whole, {self.n_bytes} bytes at once"
            )
        with self.owner.lock:
            lib.ggml_backend_tensor_set(handle, ffi.from_buffer(raw), offset, raw.nbytes)

    def zero(self, *, start_row: int, n_rows: int) -> None:
        """Set rows of a contiguous matrix to zero bytes."""
        handle = self._memory(write=True)
        row_bytes = self.strides[0]
        if self.ndim != 2 or not 0 <= start_row <= start_row + n_rows <= self.shape[0]:
            raise ShapeError(f"rows {start_row} to {start_row + n_rows} are outside of {self.shape}")
        if not self.owner.is_plain:
            raise ShapeError(f"{self.name}: this buffer type takes tensors whole")
        start, size = start_row * row_bytes, n_rows * row_bytes
        with self.owner.lock:
            if start % WORD_BYTES or size % WORD_BYTES:
                lib.ggml_backend_tensor_set(handle, ffi.new("char[]", size), start, size)
            else:
                lib.ggml_backend_tensor_memset(handle, 0, start, size)

    def read_rows(self, start_row: int, n_rows: int) -> np.ndarray:
        """The bytes of rows of a contiguous matrix, uint8, as `set` takes them."""
        handle = self._memory(write=False)
        row_bytes = self.strides[0]
        if self.ndim != 2 or not 0 <= start_row <= start_row + n_rows <= self.shape[0]:
            raise ShapeError(f"rows {start_row} to {start_row + n_rows} are outside of {self.shape}")
        raw = np.empty(n_rows * row_bytes, np.uint8)
        with self.owner.lock:
            lib.ggml_backend_tensor_get(handle, ffi.from_buffer(raw), start_row * row_bytes, raw.nbytes)
        return raw

    def numpy(self) -> np.ndarray:
        """Copy from the device: float32 for float and quantised types, the same type for integers.

        Raises ShapeError for a node of a graph that is not an output: its memory is used again.
        """
        handle = self._memory(write=False)
        raw = np.empty(self.n_bytes, np.uint8)
        with self.owner.lock:
            lib.ggml_backend_tensor_get(handle, ffi.from_buffer(raw), 0, raw.nbytes)
        return as_numpy(raw, self.dtype, self.shape)

    def __matmul__(self, other: Tensor) -> Tensor:
        if not isinstance(other, Tensor):
            return NotImplemented
        if other.transposed_of is not None:
            return products.mul_mat(other.transposed_of, self)
        return products.mul_mat(shapes.cont(other.T), self)

    def __add__(self, other: Tensor | float) -> Tensor:
        return ops.add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Tensor | float) -> Tensor:
        return ops.sub(self, other)

    def __rsub__(self, other: float) -> Tensor:
        return ops.add(ops.neg(self), other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return ops.mul(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return ops.div(self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return ops.quotient(other, self)

    def __neg__(self) -> Tensor:
        return ops.neg(self)

    def __getitem__(self, index: Any) -> Tensor:
        return shapes.slice_view(self, index)

    def __iter__(self) -> Any:
        raise TypeError("a Tensor is not iterated over; slice it")

    def __bool__(self) -> bool:
        raise TypeError("a Tensor has no value while the graph is built; compare with None by `is`")

    @property
    def T(self) -> Tensor:
        """This tensor with its last two dimensions swapped, without a copy."""
        if self.transposed_of is not None:
            return self.transposed_of
        return Tensor(None, max(self.ndim, 2), self.owner, self.graph, self)

    def reshape(self, *shape: int) -> Tensor:
        """This tensor's elements in another shape; it must be contiguous."""
        return shapes.reshape(self, shape)

    def permute(self, *axes: int) -> Tensor:
        """The dimensions in another order, as numpy's transpose(axes), without a copy."""
        return shapes.permute(self, axes)

    def cont(self) -> Tensor:
        """A contiguous copy."""
        return shapes.cont(self)

    def cast(self, kind: str | DType) -> Tensor:
        """A copy in another type."""
        return shapes.cast(self, kind)

    def __repr__(self) -> str:
        if self.owner.closed:
            return "Tensor(closed)"
        if self._handle is None:
            return f"Tensor({self.shape}, {self.dtype.name}, transposed)"
        return f"Tensor({self.name!r}, {self.shape}, {self.dtype.name})"


def host_bytes(data: Any, kind: DType, shape: Sequence[int], name: str = "") -> np.ndarray:
    """Turn host data into the bytes of a tensor of this type and shape.

    Raises ShapeError when shape or type do not fit.
    """
    array = np.ascontiguousarray(data)
    if array.dtype == np.uint8 and array.ndim <= 1:
        return array.reshape(-1)
    if np.shape(data) != tuple(shape):
        raise ShapeError(f"{name or 'tensor'} has shape {tuple(shape)}; the data has {np.shape(data)}")
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name or 'tensor'} takes numbers; the data is {array.dtype}")
    if kind.numpy is None or kind.numpy.kind != "i":
        return quantize(array, kind)
    if not fits_integers(array, kind.numpy):
        raise ShapeError(f"{name or 'tensor'} is {kind}; the {array.dtype} data does not fit it")
    return np.ascontiguousarray(array, kind.numpy).reshape(-1).view(np.uint8)


def fits_integers(array: np.ndarray, kind: np.dtype[Any]) -> bool:
    """Whether an integer type holds these numbers as they are."""
    if np.can_cast(array.dtype, kind):
        return True
    limits = np.iinfo(kind)
    return array.dtype.kind in "iu" and bool(array.min() >= limits.min and array.max() <= limits.max)


def as_numpy(raw: np.ndarray, kind: DType, shape: Sequence[int]) -> np.ndarray:
    """Turn a tensor's bytes into an array: float32, or the integer type itself."""
    if kind.numpy is not None:
        values = raw.view(kind.numpy).reshape(tuple(shape))
        return values.astype(np.float32) if kind.numpy == np.float16 else values
    return dequantize(raw, kind, tuple(shape))


from . import ops, products, shapes  # noqa: E402  (operations need Tensor, Tensor's operators need them)
