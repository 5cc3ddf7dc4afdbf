"""The logits of a step, which stay on the devices until somebody wants more than the best of each row.

Valid until the next step. Engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml import Candidates, merged_candidates


class Logits:
    """Rows of logits of which the devices have found the best already, each among its part of the vocabulary.

    `parts` are what they found and `first_ids` where their parts begin.
    Shapes: rows() float32 [n_rows, n_vocab]; a part's ids [rows of the step, k].
    """

    def __init__(
        self,
        fetch: Callable[[], npt.NDArray[np.float32]],
        parts: Sequence[Candidates],
        first_ids: Sequence[int] = (0,),
        at: Sequence[int] | None = None,
    ) -> None:
        self._fetch = fetch
        self._parts, self._first_ids = parts, first_ids
        self._at = at

    @property
    def k(self) -> int:
        """How many of each row are known."""
        return int(self._parts[0].ids.shape[1])

    def take(self, at: Sequence[int]) -> Logits:
        """Some of the rows of a step that were not taken from yet."""
        return Logits(self._fetch, self._parts, self._first_ids, at)

    @cached_property
    def best(self) -> Candidates:
        """The best of each of these rows among the whole vocabulary."""
        best = merged_candidates(self._parts, self._first_ids)
        if self._at is None:
            return best
        rows = list(self._at)
        return Candidates(best.ids[rows], best.values[rows], best.found[rows], best.logsumexp[rows])

    def greedy(self) -> list[int] | None:
        """The likeliest token of each of these rows; None where a row cannot be used or is empty."""
        best: list[float] = []
        tokens: list[int] = []
        for part, first in zip(self._parts, self._first_ids):  # lists: arrays of so few rows take longer
            if min(part.found.tolist()) < 1:
                return None
            values, ids = _firsts(part.values), _firsts(part.ids)
            if not tokens:
                best, tokens = values, [token + first for token in ids]
                continue
            for r, value in enumerate(values):
                if value > best[r]:  # of equal ones the lowest part
                    best[r], tokens[r] = value, ids[r] + first
        return tokens if self._at is None else [tokens[r] for r in self._at]

    def value(self, row: int, token: int) -> float:
        """The logit of one token."""
        at = np.flatnonzero(self.best.ids[row] == token)
        return float(self.best.values[row, at[0]] if at.size else self.rows()[row, token])

    def rows(self) -> npt.NDArray[np.float32]:
        """All logits of these rows, fetched from the devices, which the caller may change."""
        rows = self._fetch()
        return rows if self._at is None else rows[list(self._at)]


def _firsts(table: npt.NDArray[np.generic]) -> list[Any]:
    """The first number of each row; of a single row without making a view of it."""
    return [table.item(0)] if len(table) == 1 else table[:, 0].tolist()
