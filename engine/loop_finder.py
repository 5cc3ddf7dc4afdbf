"""Answers that go round in circles: the same few tokens again and again.

Knows token ids only; one finder a sequence.
"""

from __future__ import annotations

import numpy as np

MAX_PERIOD = 64
# Shorter runs, such as lines of dashes, are no loops.
MIN_TOKENS = 64


class LoopFinder:
    """Looks for a sequence of at most 64 tokens that came `limit` times in a row, over 64 tokens at least."""

    def __init__(self, limit: int) -> None:
        periods = np.arange(1, MAX_PERIOD + 1)
        self._last = np.full(MAX_PERIOD, -1, np.int64)  # the newest first
        self._n_same = np.zeros(MAX_PERIOD, np.int64)  # tokens in a row that equal the one a period before
        self._most = np.maximum(limit * periods, MIN_TOKENS) - periods

    def push(self, token: int) -> bool:
        """Take the next token; whether the answer is in a loop."""
        self._n_same = np.where(self._last == token, self._n_same + 1, 0)
        self._last[1:] = self._last[:-1].copy()
        self._last[0] = token
        return bool((self._n_same >= self._most).any())
