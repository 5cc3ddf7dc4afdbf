"""Host arrays on their way to and from a graph's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .errors import ShapeError
from .tensor import fits_integers


class Transfers:
    """The native list of what a run sends or reads; it keeps the arrays alive.

    Each item is a C tensor, an array of its bytes, the number of rows that its integers may choose from, or 0, and
    among how many of them none may stand twice.
    """

    def __init__(self, items: Sequence[tuple[Any, np.ndarray, int, int]]) -> None:
        self.n = len(items)
        self.native = ffi.new("pg_transfer[]", max(self.n, 1))
        self._arrays = [ffi.from_buffer(array) for _, array, *_ in items]
        for transfer, data, (tensor, array, n_rows, n_distinct) in zip(self.native, self._arrays, items):
            transfer.tensor, transfer.data, transfer.size = tensor, data, array.nbytes
            transfer.n_rows, transfer.n_distinct = n_rows, n_distinct

    def resize(self, at: int, n_bytes: int) -> None:
        """Let an item send or read fewer bytes than its array has."""
        self.native[at].size = n_bytes

    def first_bad_row(self) -> tuple[int, int]:
        """The place of the first item with a number that is no row, and the number."""
        value = ffi.new("int64_t *")
        at = int(lib.pg_first_bad_row(self.native, self.n, value))
        return at, int(value[0])


def fill(name: str, feed: np.ndarray, value: Any) -> None:
    """Copy a caller's value into an input's host array.

    Raises ShapeError unless it has the input's shape and its numbers fit the input's type.
    """
    array = np.asarray(value)
    if array.shape != feed.shape:
        raise ShapeError(f"input {name!r} has shape {feed.shape}; {array.shape} was given")
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"input {name!r} takes numbers; {array.dtype} was given")
    if feed.dtype.kind == "i" and not fits_integers(array, feed.dtype):
        raise ShapeError(f"input {name!r} is {feed.dtype}; {array.dtype} values that do not fit it were given")
    np.copyto(feed, array, casting="unsafe")
