"""Choosing a token from each of many rows at once, where the candidates of all of them are known.

The same arithmetic as `Sampler.choose` in the same order, for all rows in a handful of array operations. Knows numbers
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pyggml import HAS_NAN, NONE_LEFT

from .errors import GenerationError


class Knobs(NamedTuple):
    """What decides one row: the candidates that it sees, the filters, and the random number in [0, 1)."""

    n_seen: int
    top_p: float
    min_p: float
    temperature: float
    number: float


def choose_rows(ids: npt.NDArray[np.int32], values: npt.NDArray[np.float32], knobs: Sequence[Knobs]) -> list[int]:
    """The token of each row.

    Shapes: ids, values [n_rows, k], the best of each row, descending; of row r the first n_seen count.
    """
    table = np.array(knobs, np.float64)
    n_seen = table[:, 0].astype(np.int64)
    top_p, min_p, temperature, number = table[:, 1:].T[:, :, None]
    places = np.arange(n_seen.max())
    # What lies behind a row's candidates was never written.
    gaps = np.where(places < n_seen[:, None], values[:, : n_seen.max()], np.float32(-np.inf)).astype(np.float64)
    gaps -= gaps[:, :1]
    weights = np.exp(gaps)
    cumulative = weights.cumsum(axis=1)
    is_out = (cumulative < top_p * cumulative[:, -1:]) & (top_p < 1)
    n_nucleus = np.where(top_p[:, 0] < 1, is_out.sum(axis=1) + 1, n_seen)
    n_likely = np.where(min_p[:, 0] > 0, (weights >= min_p).sum(axis=1), n_seen)
    n_keep = np.minimum(np.minimum(n_nucleus, n_likely), n_seen)
    weights = np.exp(gaps / temperature)
    weights[places >= n_keep[:, None]] = 0.0
    cumulative = weights.cumsum(axis=1)
    chosen = (cumulative <= number * cumulative[:, -1:]).sum(axis=1)
    at = np.minimum(chosen, n_keep - 1)
    tokens: list[int] = np.take_along_axis(ids, at[:, None], axis=1)[:, 0].tolist()
    return tokens


def row_error(found: int) -> GenerationError:
    """Why no token can be chosen from a row, by what was found in it."""
    if found == NONE_LEFT:
        return GenerationError("no token is left to choose: bias, bans or the grammar forbid the whole vocabulary")
    kind = "a NaN" if found == HAS_NAN else "an infinite value"
    return GenerationError(f"the model's logits hold {kind}: its computation went wrong, so this answer ends here")
