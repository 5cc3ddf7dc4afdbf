"""What is read off a prompt while it is evaluated: log-probabilities, logits, or a pooled hidden state.

A reader is given the results of prompt tokens, all or from one on, chunk after chunk, on the engine's thread. It knows
rows of numbers and token ids only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyggml import top_candidates

from .errors import GenerationError, RequestError
from .request import TokenLogprob

POOLINGS = ("mean", "cls", "last")


class LogprobReader:
    """The log-probability of each prompt token after those before it, and the likeliest `n_top` at its place."""

    wants_hidden = False
    first = 0
    is_steady = False
    max_rows: int | None = None

    def __init__(self, ids: Sequence[int], n_top: int = 0) -> None:
        self._ids = ids
        self._n_top = n_top
        self.entries: list[TokenLogprob] = []

    def take(self, start: int, rows: np.ndarray) -> None:
        """Logits of the tokens from `start` on, [n, n_vocab]; the last token of a prompt has no next one."""
        following = self._ids[start + 1 : start + 1 + len(rows)]
        if not following:
            return
        rows = rows[: len(following)]
        found = top_candidates(rows, [max(1, self._n_top)] * len(rows), scale=[1.0] * len(rows))
        for r, token in enumerate(following):
            if found.found[r] < 0:
                raise GenerationError(f"the logits of prompt token {start + r} cannot be used: NaN or infinite")
            total = float(found.logsumexp[r])
            n = min(self._n_top, int(found.found[r]))
            pairs = zip(found.ids[r, :n].tolist(), found.values[r, :n].tolist())
            top = tuple((id, min(0.0, value - total)) for id, value in pairs)
            self.entries.append(TokenLogprob(int(token), min(0.0, float(rows[r, token]) - total), top))

    def told(self) -> dict[str, Any]:
        """The entries."""
        return {"prompt_logprobs": tuple(self.entries)}


class LogitReader:
    """Logits of a prompt from token `first` on, or the exact log-probabilities of the tokens behind them in float64."""

    wants_hidden = False
    is_steady = True

    def __init__(self, ids: Sequence[int], *, whole: bool, first: int = 0, max_rows: int | None = None) -> None:
        self.first = first
        self.max_rows = max_rows
        self._ids = ids
        self._whole = whole
        self._result: np.ndarray | None = None

    def take(self, start: int, rows: np.ndarray) -> None:
        """Logits of the tokens from `start` on, [n, n_vocab]."""
        n = len(self._ids) - self.first
        if self._result is None:
            self._result = np.empty((n, rows.shape[1]), np.float32) if self._whole else np.empty(n - 1)
        following = self._ids[start + 1 : start + 1 + len(rows)]
        found = rows if self._whole else _logprobs(rows[: len(following)], following)
        at = start - self.first
        self._result[at : at + len(found)] = found

    def told(self) -> dict[str, Any]:
        """Nothing: the caller takes the result."""
        return {}

    def result(self) -> np.ndarray:
        """[n_tokens - first, n_vocab] float32, or [n_tokens - first - 1] float64."""
        assert self._result is not None, "the prompt was read"
        return self._result


class PoolReader:
    """One vector for a prompt: the mean of its tokens' hidden states, the first (cls) or the last one.

    Raises RequestError for another pooling.
    """

    wants_hidden = True
    first = 0
    is_steady = False
    max_rows: int | None = None

    def __init__(self, pooling: str) -> None:
        if pooling not in POOLINGS:
            raise RequestError(f"pooling {pooling!r}; {', '.join(POOLINGS)} are supported")
        self._pooling = pooling
        self._sum: np.ndarray | None = None
        self._n = 0

    def take(self, start: int, rows: np.ndarray) -> None:
        """Hidden states behind the last norm of the tokens from `start` on, [n, n_embd]."""
        if self._pooling == "mean":
            part = rows.sum(axis=0, dtype=np.float64)
            self._sum = part if self._sum is None else self._sum + part
            self._n += len(rows)
        elif self._pooling == "last" or start == 0:
            self._sum, self._n = rows[-1 if self._pooling == "last" else 0].astype(np.float64), 1

    def told(self) -> dict[str, Any]:
        """The vector."""
        return {"embedding": self.vector()}

    def vector(self) -> np.ndarray:
        """The pooled state at length 1, [n_embd] float32."""
        assert self._sum is not None, "the prompt was read"
        pooled = self._sum / self._n
        length = float(np.linalg.norm(pooled))
        if not np.isfinite(length):
            raise GenerationError("the model's hidden state is not finite: its computation went wrong")
        return (pooled / length if length else pooled).astype(np.float32)


def _logprobs(logits: np.ndarray, ids: Sequence[int]) -> np.ndarray:
    """log softmax(logits)[row, id], in float64."""
    x = logits.astype(np.float64)
    top = x.max(axis=1, keepdims=True, initial=-np.inf)
    total = np.log(np.exp(x - top).sum(axis=1)) + top[:, 0]
    values: np.ndarray = x[np.arange(len(ids)), ids] - total
    return values
