"""How often each token occurs in a text that grows, and may lose its oldest tokens.

Keeps ids and counts as arrays, so that a penalty touches only the logits of tokens that occurred.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class TokenCounts:
    """Counts of the distinct tokens seen; `ids` and `counts` are parallel views, valid until the next change."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """The distinct tokens, in no particular order."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `ids` occurred."""
        return self._counts[: len(self._slots)]

    def add(self, token: int) -> None:
        """Count one more occurrence."""
        slot = self._slots.get(token)
        if slot is not None:
            self._counts[slot] += 1
            return
        slot = len(self._slots)
        if slot == self._ids.size:
            self._ids = np.resize(self._ids, 2 * slot)
            self._counts = np.resize(self._counts, 2 * slot)
        self._slots[token] = slot
        self._ids[slot] = token
        self._counts[slot] = 1

    def remove(self, token: int) -> None:
        """Forget one occurrence of a token that was added."""
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot]:
            return
        last = len(self._slots) - 1
        moved = int(self._ids[last])
        self._ids[slot] = moved
        self._counts[slot] = self._counts[last]
        self._slots[moved] = slot
        del self._slots[token]
