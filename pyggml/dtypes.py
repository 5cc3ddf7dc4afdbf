"""ggml's element types: what they are called, how their rows are laid out, conversion to and from float32.

The table is read from the linked ggml, so new types appear by themselves. Knows nothing of files or
devices. Thread-safe; the conversions run in C with the GIL released.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ._ffi import ffi, lib
from .errors import ShapeError

_NUMPY = {"f32": "f4", "f16": "f2", "f64": "f8", "i8": "i1", "i16": "i2", "i32": "i4", "i64": "i8"}
# ggml's quantisers overflow in float16 scales or abort on a search that finds nothing beyond these.
_MAX_VALUE = 65504
_MAX_IMPORTANCE = 1e20


@dataclass(frozen=True, repr=False)
class DType:
    """An element type of ggml.

    `block_size` elements of a row take `type_size` bytes. `numpy` is the numpy type of the same layout,
    None for bf16 and the quantised types.
    """

    name: str
    id: int
    block_size: int
    type_size: int
    is_quantized: bool
    needs_imatrix: bool
    numpy: np.dtype[Any] | None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"DType({self.name!r})"


def _load_types() -> list[DType]:
    types = []
    for id in range(lib.GGML_TYPE_COUNT):
        block_size = int(lib.ggml_blck_size(id))
        if block_size == 0:  # removed from ggml
            continue
        name = ffi.string(lib.ggml_type_name(id)).decode().lower()
        numpy = np.dtype(_NUMPY[name]) if name in _NUMPY else None
        size, is_quantized = int(lib.ggml_type_size(id)), bool(lib.ggml_is_quantized(id))
        needs_imatrix = bool(lib.ggml_quantize_requires_imatrix(id))
        types.append(DType(name, id, block_size, size, is_quantized, needs_imatrix, numpy))
    return types


DTYPES: tuple[DType, ...] = tuple(_load_types())
_LOOKUP: dict[Any, DType] = {key: t for t in DTYPES for key in (t.name, t.id, t.numpy) if key is not None}


def dtype(kind: str | int | DType | DTypeLike) -> DType:
    """Find a type by its name in any case ("q4_k"), ggml's number, or the numpy type of the same layout.

    Raises ShapeError with the names that exist.
    """
    if isinstance(kind, DType):
        return kind
    key: Any = kind.lower() if isinstance(kind, str) else kind
    if not isinstance(key, (str, int)) and key is not None:
        key = np.dtype(key)
    found = _LOOKUP.get(key)
    if found is None:
        raise ShapeError(f"no ggml type {kind!r}; there are {', '.join(t.name for t in DTYPES)}")
    return found


def nbytes(shape: Sequence[int], kind: str | int | DType) -> int:
    """Bytes that a contiguous tensor takes.

    Raises ShapeError when its rows are not whole blocks of the type.
    """
    type = dtype(kind)
    row = shape[-1] if shape else 1
    if row % type.block_size:
        raise ShapeError(f"shape {tuple(shape)}: rows of {row} are no multiple of {type}'s {type.block_size}")
    return math.prod(shape) // type.block_size * type.type_size


def quantize(
    array: ArrayLike, kind: str | int | DType, imatrix: ArrayLike | None = None, n_threads: int = 1
) -> np.ndarray:
    """Convert values to the bytes of a tensor of this type.

    `imatrix` weighs the columns by importance; the types that need it say so when it is missing.
    Shapes: array [..., n_per_row], imatrix [n_per_row], result uint8 [nbytes(array.shape, kind)].
    Raises ShapeError for rows or values that do not fit, and for types that only exist within kernels.
    """
    type = dtype(kind)
    values = np.asarray(array)
    out = np.empty(nbytes(values.shape, type), np.uint8)
    if type.numpy is not None:
        _copy_plain(values, type, out.view(type.numpy))
        return out
    values = np.ascontiguousarray(values, np.float32)
    if values.size:
        _quantize_rows(
            values.reshape(-1, values.shape[-1] if values.ndim else 1), type, imatrix, out, n_threads
        )
    return out


def _copy_plain(values: np.ndarray, type: DType, out: np.ndarray) -> None:
    if not np.can_cast(values.dtype, out.dtype, "same_kind"):
        raise ShapeError(f"{values.dtype} values cannot become {type} without loss; convert them first")
    try:
        with np.errstate(over="raise"):
            out[:] = values.reshape(-1)
    except FloatingPointError as error:
        raise ShapeError(f"there are values too large for {type}; bf16 and f32 hold them") from error


def _quantize_rows(
    rows: np.ndarray, type: DType, imatrix: ArrayLike | None, out: np.ndarray, n_threads: int
) -> None:
    if _to_float(type) == ffi.NULL:
        raise ShapeError(f"{type} is for activations within kernels; store weights as q8_0")
    if type.is_quantized and not np.abs(rows).max() <= _MAX_VALUE:  # also false for NaN
        raise ShapeError(f"{type} holds values up to {_MAX_VALUE}; NaN and larger ones need f32 or bf16")
    n_rows, n_per_row = rows.shape
    weights = _importance(imatrix, type, n_per_row)
    source, target = ffi.from_buffer("float[]", rows), ffi.from_buffer(out)
    lib.ggml_quantize_init(type.id)

    def convert(first: int, last: int) -> None:
        lib.ggml_quantize_chunk(type.id, source, target, first * n_per_row, last - first, n_per_row, weights)

    n_threads = max(1, min(n_threads, n_rows))
    bounds = [n_rows * i // n_threads for i in range(n_threads + 1)]
    if n_threads == 1:
        return convert(0, n_rows)
    with ThreadPoolExecutor(n_threads, "quantize") as pool:
        list(pool.map(convert, bounds[:-1], bounds[1:]))


def _importance(imatrix: ArrayLike | None, type: DType, n_per_row: int) -> Any:
    if imatrix is None:
        if type.needs_imatrix:
            raise ShapeError(f"{type} needs an importance matrix: pass imatrix, one weight a column")
        return ffi.NULL
    weights = np.ascontiguousarray(imatrix, np.float32)
    if weights.shape != (n_per_row,) or not ((weights >= 0) & (weights <= _MAX_IMPORTANCE)).all():
        wanted = f"({n_per_row},) with weights from 0 to {_MAX_IMPORTANCE:g}"
        raise ShapeError(f"imatrix has shape {weights.shape}; it must be {wanted}")
    return ffi.from_buffer("float[]", weights)


def _to_float(type: DType) -> Any:
    return lib.ggml_get_type_traits(type.id).to_float


def dequantize(data: np.ndarray, kind: str | int | DType, shape: Sequence[int]) -> np.ndarray:
    """Convert the bytes of a tensor to float32.

    Shapes: data uint8 [nbytes(shape, kind)], result float32 [*shape].
    Raises ShapeError when the bytes do not fit the shape, or for a type that ggml cannot convert.
    """
    type = dtype(kind)
    n_bytes = nbytes(shape, type)
    if data.nbytes != n_bytes:
        raise ShapeError(f"shape {tuple(shape)} of {type} takes {n_bytes} bytes; {data.nbytes} were given")
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    if type.numpy is not None:
        return raw.view(type.numpy).reshape(tuple(shape)).astype(np.float32)
    to_float = _to_float(type)
    if to_float == ffi.NULL:
        raise ShapeError(f"{type} is for activations within kernels; ggml cannot convert it to float32")
    out = np.empty(tuple(shape), np.float32)
    if out.size:
        to_float(ffi.from_buffer(raw), ffi.from_buffer("float[]", out), out.size)
    return out
