"""The best tokens of a batch of logit rows, found in one native call that leaves the GIL to others.

Knows rows of numbers only: no sampler, no tokenizer. Safe to call from several threads on different arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._ffi import ffi, lib
from .errors import AllocationError, ShapeError

HAS_NAN = -1
HAS_INF = -2
NONE_LEFT = -3


class Candidates(NamedTuple):
    """The largest values of each row.

    Shapes: ids, values [n_rows, k_max]; found, logsumexp [n_rows]. Row r is filled up to found[r], or found[r] is
    one of HAS_NAN, HAS_INF (a +inf) and NONE_LEFT (all are -inf).
    """

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    found: npt.NDArray[np.int32]
    logsumexp: npt.NDArray[np.float64]


def top_candidates(
    logits: npt.NDArray[np.float32], k: Sequence[int], *, scale: Sequence[float] | None = None
) -> Candidates:
    """The k[r] largest values of each row r, descending, equal ones by rising id; k[r] <= 0 means all.

    Values of -inf are left out. Where scale[r] > 0, logsumexp[r] is log(sum(exp(scale[r] * logits[r]))) of the row.
    Shapes: logits [n_rows, n_vocab]; k, scale n_rows. Raises: ShapeError, AllocationError.
    """
    if logits.ndim != 2 or logits.dtype != np.float32 or not logits.flags.c_contiguous:
        raise ShapeError(
            f"logits are {logits.dtype}{list(logits.shape)}; a contiguous float32 array [n_rows, n_vocab] is needed"
        )
    n_rows, n_vocab = logits.shape
    if len(k) != n_rows or (scale is not None and len(scale) != n_rows):
        raise ShapeError(f"k or scale does not have one entry for each of the {n_rows} rows of logits")
    limits = [n_vocab if wanted <= 0 else min(wanted, n_vocab) for wanted in k]
    k_max = max(limits, default=0)
    ids = np.empty((n_rows, k_max), np.int32)
    values = np.empty((n_rows, k_max), np.float32)
    found = np.empty(n_rows, np.int32)
    logsumexp = np.empty(n_rows, np.float64)
    status = lib.pg_candidates(
        ffi.from_buffer("float[]", logits),
        n_rows,
        n_vocab,
        limits,
        k_max,
        [0.0] * n_rows if scale is None else scale,
        ffi.from_buffer("int32_t[]", ids),
        ffi.from_buffer("float[]", values),
        ffi.from_buffer("double[]", logsumexp),
        ffi.from_buffer("int32_t[]", found),
    )
    if status:
        raise AllocationError(f"no memory for the work space to choose from {n_vocab} logits")
    return Candidates(ids, values, found, logsumexp)


def mask_disallowed(row: npt.NDArray[np.float32], allowed: npt.NDArray[np.int32]) -> None:
    """Set row[i] to -inf, in place, where bit i of `allowed` is 0 (32 bits to a word, lowest first); NaN and +inf stay.

    Shapes: row [n_vocab], allowed [at least n_vocab / 32 words]. Raises: ShapeError.
    """
    n_words = (row.size + 31) // 32
    if row.ndim != 1 or row.dtype != np.float32 or not row.flags.c_contiguous or not row.flags.writeable:
        raise ShapeError(f"the row is {row.dtype}{list(row.shape)}; a writable contiguous float32 vector is needed")
    if allowed.dtype != np.int32 or not allowed.flags.c_contiguous or allowed.size < n_words:
        raise ShapeError(
            f"the mask is {allowed.dtype}{list(allowed.shape)}; {n_words} contiguous words of int32 are needed"
        )
    lib.pg_candidates_mask(ffi.from_buffer("float[]", row), row.size, ffi.from_buffer("int32_t[]", allowed))
