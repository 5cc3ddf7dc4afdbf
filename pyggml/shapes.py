"""Copies, types and the order of elements: what moves numbers and computes none.

reshape, permute, view and slicing cost nothing: they look at the same memory. Shapes are in numpy order, outermost
first.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ._ffi import ffi, lib
from .dtypes import DType, dtype
from .errors import ShapeError
from .operands import FLOATS, ne_of, need, need_contiguous, need_rows, need_size, need_type, node
from .tensor import Tensor, check_storable, ggml_ne

_REPEATABLE = (*FLOATS, "i16", "i32")


def cont(x: Tensor) -> Tensor:
    """A contiguous copy."""
    _need_plain("cont", x)
    return node(lib.ggml_cont, x.ndim, x)


def cast(x: Tensor, kind: str | DType) -> Tensor:
    """A contiguous copy in another type: between floats, float32 and int32, float and quantised types."""
    kind = dtype(kind)
    _need_convertible("cast", x, kind)
    _need_plain("cast", x)
    return node(lib.ggml_cast, x.ndim, x, kind.id)


def _need_convertible(op: str, x: Tensor, kind: DType) -> None:
    check_storable(op, x.shape, kind)
    source = x.dtype
    if kind.is_quantized or source.is_quantized:
        need_rows(op, x)
    if source == kind:
        return
    if source.name in FLOATS:
        able = kind.name in FLOATS or kind.is_quantized or (source.name, kind.name) == ("f32", "i32")
    else:
        able = kind.name == "f32" and (source.is_quantized or source.name == "i32")
    need(able, op, x, because=f"ggml cannot turn {source} into {kind}; float32 may serve as a step between")


def copy(x: Tensor, to: Tensor) -> Tensor:
    """Copy `x` into the memory of a state of the same shape, converting, and return the state after the writing."""
    need(ne_of(x) == ne_of(to), "copy", x, to, because="the shapes differ")
    _need_convertible("copy", x, to.dtype)
    if to.dtype.is_quantized:
        need_contiguous("copy", to)
    if x.dtype.is_quantized:
        need_rows("copy", to)
    need_writable("copy", to)
    return node(lib.ggml_cpy, to.ndim, x, to)


def need_writable(op: str, x: Tensor) -> None:
    """Raise ShapeError for weights, which may lie in memory that is only read, and for inputs."""
    root = x.handle.view_src if x.is_view else x.handle
    is_input = root.op == lib.GGML_OP_NONE and root.buffer == ffi.NULL
    if (
        root.buffer != ffi.NULL
        and lib.ggml_backend_buffer_get_usage(root.buffer) == lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
    ):
        is_input = True
    need(
        not is_input, op, x, because="weights and inputs are only read; write to graph.state(...) or a Buffer"
    )


def concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Put `b` behind `a` along an axis."""
    axis = axis + a.ndim if axis < 0 else axis
    same = a.ndim == b.ndim and all(m == n for i, (m, n) in enumerate(zip(a.shape, b.shape)) if i != axis)
    need(
        same and 0 <= axis < a.ndim and a.dtype == b.dtype,
        "concat",
        a,
        b,
        because=f"only axis {axis} may differ",
    )
    need_size("concat", (*a.shape[:axis], a.shape[axis] + b.shape[axis], *a.shape[axis + 1 :]), a, b)
    _need_plain("concat", a)
    _need_plain("concat", b)
    if a.dtype.name not in (*FLOATS, "i8", "i16", "i32"):
        need_rows("concat", a, b)
    return node(lib.ggml_concat, a.ndim, a, b, a.ndim - 1 - axis)


def repeat(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Copy `x` as often as fills the shape."""
    ne = ggml_ne(shape)
    need(
        all(a % b == 0 for a, b in zip(ne, ne_of(x))),
        "repeat",
        x,
        because=f"it does not divide {tuple(shape)}",
    )
    need_type("repeat", x, _REPEATABLE)
    need_rows("repeat", x)
    return node(lib.ggml_repeat_4d, len(shape), x, *ne)


def _need_plain(op: str, x: Tensor) -> None:
    """Raise ShapeError for a weight in a layout that only matrix products can read."""
    need(x.owner.is_plain, op, x, because="it lies in a layout for matrix products only")
    if x.dtype.block_size > 1:
        need_rows(op, x)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape; one length may be -1."""
    lengths = [operator.index(n) for n in shape]
    n = int(lib.ggml_nelements(x.handle))
    if lengths.count(-1) == 1:
        known = 1
        for length in lengths:
            known *= length if length != -1 else 1
        need(
            known > 0 and n % known == 0,
            "reshape",
            x,
            because=f"{tuple(lengths)} has another number of elements",
        )
        lengths[lengths.index(-1)] = n // known
    ne = ggml_ne(lengths)
    need(
        ne[0] * ne[1] * ne[2] * ne[3] == n,
        "reshape",
        x,
        because=f"{tuple(lengths)} has another number of elements",
    )
    need(ne[0] % x.dtype.block_size == 0, "reshape", x, because=f"rows of {ne[0]} are not whole blocks")
    need_contiguous("reshape", x)
    _need_plain("reshape", x)
    return node(lib.ggml_reshape_4d, len(lengths), x, *ne)


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The dimensions in another order, as numpy's transpose(axes), without a copy.

    More axes than `x` has dimensions add dimensions of length 1 in front before.
    """
    n = len(axes)
    need(
        sorted(axes) == list(range(n)) and x.ndim <= n <= 4,
        "permute",
        x,
        because=f"{tuple(axes)} is no order of its axes",
    )
    need(x.dtype.block_size == 1 or axes[-1] == n - 1, "permute", x, because="blocks of a row stay together")
    _need_plain("permute", x)
    targets = [0, 1, 2, 3]
    for new, old in enumerate(axes):
        targets[n - 1 - old] = n - 1 - new
    return node(lib.ggml_permute, n, x, *targets)


def view(x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
    """A window on the memory of `x`: strides of all but the last dimension and offset in bytes."""
    ne = ggml_ne(shape)
    size, block = x.dtype.type_size, x.dtype.block_size
    nb = [operator.index(s) for s in reversed(strides)]
    offset = operator.index(offset)
    need(len(nb) == len(shape) - 1, "view", x, because="one stride for each dimension but the last is needed")
    need(ne[0] % block == 0, "view", x, because="rows must be whole blocks")
    need(
        all(s >= 0 and s % size == 0 for s in (*nb, offset)),
        "view",
        x,
        because=f"strides and offset must be multiples of {size} bytes",
    )
    _need_plain("view", x)
    row = ne[0] // block * size
    end = offset + row + sum((length - 1) * stride for length, stride in zip(ne[1:], nb))
    need(end <= x.n_bytes, "view", x, because=f"the window ends at byte {end} of {x.n_bytes}")
    _need_within(x, offset, row * ne[1] * ne[2] * ne[3])
    while len(nb) < 3:
        nb.append(nb[-1] * ne[len(nb)] if nb else row)
    return node(lib.ggml_view_4d, len(shape), x, *ne, *nb, offset)


def _need_within(x: Tensor, offset: int, n_bytes: int) -> None:
    """ggml wants room for the window's elements side by side, even where they overlap."""
    root = x.handle.view_src if x.is_view else x.handle
    start = offset + (int(x.handle.view_offs) if x.is_view else 0)
    room = int(lib.ggml_nbytes(root))
    need(
        start + n_bytes <= room,
        "view",
        x,
        because=f"overlapping windows need {start + n_bytes} bytes of {room}",
    )


def slice_view(x: Tensor, index: Any) -> Tensor:
    """Basic slicing, as numpy's: integers drop a dimension, slices have step 1, one dimension stays."""
    starts, stops, dropped = _bounds(x, index if isinstance(index, tuple) else (index,))
    block, size = x.dtype.block_size, x.dtype.type_size
    need_rows("slicing", x)
    need(starts[-1] % block == 0, "slicing", x, because=f"a row can be cut only every {block} elements")
    offsets = [start * stride for start, stride in zip(starts[:-1], x.strides)]
    lengths = [stop - start for start, stop in zip(starts, stops)]
    offset = sum(offsets) + starts[-1] // block * size
    kept = [axis for axis in range(x.ndim) if axis not in dropped] or [x.ndim - 1]
    if kept[-1] == x.ndim - 1:  # one node, as device code expects that makes one kernel of several
        return view(x, [lengths[axis] for axis in kept], [x.strides[axis] for axis in kept[:-1]], offset)
    window = view(x, lengths, x.strides[:-1], offset)
    if kept != sorted(set(range(x.ndim)) - set(range(len(dropped)))):
        window = permute(window, [axis for axis in range(x.ndim) if axis not in kept] + kept)
    return Tensor(window.handle, len(kept), window.owner, window.graph)


def _bounds(x: Tensor, index: tuple[Any, ...]) -> tuple[list[int], list[int], set[int]]:
    """First and last of each axis, and the axes that integers drop."""
    if index.count(Ellipsis) == 1:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (x.ndim - len(index) + 1), *index[at + 1 :])
    need(len(index) <= x.ndim, "slicing", x, because=f"{len(index)} indices are too many")
    starts, stops, dropped = [], [], set()
    for axis, length in enumerate(x.shape):
        part = index[axis] if axis < len(index) else slice(None)
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            need(
                step == 1 and stop > start,
                "slicing",
                x,
                because=f"axis {axis} needs a step of 1 and a non-empty range",
            )
        else:
            try:
                number = operator.index(part)
            except TypeError as error:
                raise ShapeError(f"an index is an integer, a slice or ..., not {part!r}") from error
            need(
                -length <= number < length, "slicing", x, because=f"index {number} is outside of axis {axis}"
            )
            start = number % length
            stop = start + 1
            dropped.add(axis)
        starts.append(start)
        stops.append(stop)
    return starts, stops, dropped
