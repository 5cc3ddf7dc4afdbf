"""Slices of a weight for one rank: whole rows, or columns on quantisation blocks, without requantising."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .dtypes import DType, dequantize, dtype
from .errors import ShapeError


@dataclass(frozen=True)
class RawTensor:
    """Bytes with their shape (numpy order) and type, as Graph.weight takes them."""

    name: str
    shape: tuple[int, ...]
    type: DType
    data: np.ndarray

    def numpy(self) -> np.ndarray:
        """Its values as float32."""
        return dequantize(self.data, self.type, self.shape)


def even_ranges(n: int, n_ranks: int, unit: int = 1) -> list[tuple[int, int]]:
    """Cut 0..n at multiples of `unit`, as evenly as that allows, the surplus to the first ranks.

    Raises ShapeError when n is no multiple of the unit.
    """
    if n % unit:
        raise ShapeError(f"{n} is no multiple of the block of {unit}")
    n_units = n // unit
    sizes = [n_units // n_ranks + (r < n_units % n_ranks) for r in range(n_ranks)]
    stops = [sum(sizes[: r + 1]) * unit for r in range(n_ranks)]
    return [(stop - size * unit, stop) for stop, size in zip(stops, sizes)]


def take_rows(data: np.ndarray, shape: Sequence[int], kind: DType, start: int, stop: int) -> np.ndarray:
    """Rows [start, stop) of the next to last dimension, as bytes."""
    return _planes(data, shape, kind)[:, start:stop].reshape(-1)


def take_columns(data: np.ndarray, shape: Sequence[int], kind: DType, start: int, stop: int) -> np.ndarray:
    """Columns [start, stop) of the last dimension, as bytes; both must lie on blocks."""
    if start % kind.block_size or stop % kind.block_size:
        raise ShapeError(f"columns {start} to {stop} cut through {kind.name} blocks of {kind.block_size}")
    first, last = (n // kind.block_size * kind.type_size for n in (start, stop))
    return _planes(data, shape, kind)[:, :, first:last].reshape(-1)


def _planes(data: np.ndarray, shape: Sequence[int], kind: DType) -> np.ndarray:
    row_bytes = shape[-1] // kind.block_size * kind.type_size
    n_rows = shape[-2] if len(shape) > 1 else 1
    return data.reshape(-1, n_rows, row_bytes)


def cut_tensor(source: Any, cut: str, rank: int, n_ranks: int) -> RawTensor:
    """This rank's even slice of a numpy array or of a tensor of a GGUF file.

    `cut` is "out" (rows) or "in" (columns on blocks).
    """
    if isinstance(source, np.ndarray):
        array = np.ascontiguousarray(source, np.float32 if source.dtype.kind == "f" else source.dtype)
        name, shape, kind, data = "", array.shape, dtype(array.dtype), array.reshape(-1).view(np.uint8)
    else:
        name, shape, kind, data = source.name, tuple(source.shape), source.type, source.data
    if len(shape) < 2:
        raise ShapeError(f"{name or 'the weight'} of shape {shape} has no rows and columns to cut")
    if cut == "out":
        start, stop = even_ranges(shape[-2], n_ranks)[rank]
        return RawTensor(
            name, (*shape[:-2], stop - start, shape[-1]), kind, take_rows(data, shape, kind, start, stop)
        )
    if cut == "in":
        start, stop = even_ranges(shape[-1], n_ranks, kind.block_size)[rank]
        return RawTensor(
            name, (*shape[:-1], stop - start), kind, take_columns(data, shape, kind, start, stop)
        )
    raise ShapeError(f"cut {cut!r}; 'out' and 'in' are known")
