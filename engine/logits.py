"""The logits of a step, which stay on the device until somebody wants more than the best of each row.

Valid until the next step. Engine thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pyggml import Candidates


class Logits:
    """Rows of logits of which the device has found the `best` already.

    Shapes: rows() float32 [n_rows, n_vocab]; best [n_rows, k].
    """

    def __init__(
        self, fetch: Callable[[], npt.NDArray[np.float32]], best: Candidates, at: Sequence[int] | None = None
    ) -> None:
        self._fetch = fetch
        self._at = at
        if at is not None:
            rows = list(at)
            best = Candidates(best.ids[rows], best.values[rows], best.found[rows], best.logsumexp[rows])
        self.best = best

    def take(self, at: Sequence[int]) -> Logits:
        """Some of the rows of a step that were not taken from yet."""
        return Logits(self._fetch, self.best, at)

    def value(self, row: int, token: int) -> float:
        """The logit of one token."""
        at = np.flatnonzero(self.best.ids[row] == token)
        return float(self.best.values[row, at[0]] if at.size else self.rows()[row, token])

    def rows(self) -> npt.NDArray[np.float32]:
        """All logits of these rows, fetched from the device, which the caller may change."""
        rows = self._fetch()
        return rows if self._at is None else rows[list(self._at)]
