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
# The number of candidates a row that a card finds by itself.
CHOSEN: int = lib.PGC_CHOOSE_K


class Candidates(NamedTuple):
    """The largest values of each row.

    Shapes: ids, values [n_rows, k_max]; found, logsumexp [n_rows]. Row r is filled up to found[r], or found[r] is
    one of HAS_NAN, HAS_INF (a +inf) and NONE_LEFT (all are -inf).
    """

    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    found: npt.NDArray[np.int32]
    logsumexp: npt.NDArray[np.floating]


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


def chosen_candidates(found: npt.NDArray[np.int32]) -> Candidates:
    """What RankGraph.choose found, as views of its result: the CHOSEN best of each row, logsumexp at scale 1.

    The views follow the result from run to run.
    """
    k = CHOSEN
    floats = found.view(np.float32)
    return Candidates(
        found[:, :k], floats[:, k : 2 * k], found[:, 2 * k], floats[:, 2 * k + 1]
    )


def merged_candidates(parts: Sequence[Candidates], first_ids: Sequence[int]) -> Candidates:
    """The candidates of whole rows from those of their parts, which begin at these ids."""
    if len(parts) == 1:
        return parts[0]
    values = np.concatenate([part.values for part in parts], axis=1)
    ids = np.concatenate([part.ids + first for part, first in zip(parts, first_ids)], axis=1)
    founds = np.stack([part.found for part in parts])
    k = parts[0].ids.shape[1]
    for part, columns in zip(parts, range(0, values.shape[1], k)):
        values[:, columns : columns + k][np.arange(k) >= np.maximum(part.found, 0)[:, None]] = -np.inf
    order = np.lexsort((ids, -values), axis=1)[:, :k]
    total = np.minimum(np.maximum(founds, 0).sum(axis=0), k)
    bad = np.where((founds == HAS_NAN).any(axis=0), HAS_NAN, HAS_INF)
    is_bad = np.isin(founds, (HAS_NAN, HAS_INF)).any(axis=0)
    found = np.where(is_bad, bad, np.where(total > 0, total, NONE_LEFT)).astype(np.int32)
    sums = [np.where(part.found == NONE_LEFT, -np.inf, part.logsumexp) for part in parts]
    logsumexp = np.logaddexp.reduce(sums, axis=0)
    return Candidates(
        np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1), found, logsumexp
    )


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
