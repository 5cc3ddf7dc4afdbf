"""A long text as windows of token ids, each evaluated from an empty cache, and which positions of them count.

As llama-perplexity cuts a text: windows follow one another without overlap, the first token of each is replaced by the
token that begins a text where the model has one, and only the second half counts, so that every counted token has some
context. Knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import ConfigError

MIN_WINDOW = 4


@dataclass(frozen=True)
class TextWindows:
    """Token ids as in the text, int32 [n_windows, n_ctx]. `bos_id` takes the place of each window's first one."""

    tokens: np.ndarray
    bos_id: int | None

    @classmethod
    def cut(cls, ids: Sequence[int], n_ctx: int, bos_id: int | None, most: int | None = None) -> TextWindows:
        """The first `most` windows of a text, or all whole ones. Raises ConfigError where there is not one."""
        n = len(ids) // n_ctx
        if n == 0:
            raise ConfigError(f"the text has {len(ids)} tokens, fewer than one window of {n_ctx}")
        if most is not None and most > n:
            raise ConfigError(f"the text has {len(ids)} tokens, {n} windows of {n_ctx}, and {most} were asked for")
        n = n if most is None else most
        return cls(np.asarray(ids[: n * n_ctx], np.int32).reshape(n, n_ctx), bos_id)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_ctx(self) -> int:
        """Tokens of a window."""
        return int(self.tokens.shape[1])

    @property
    def first(self) -> int:
        """The first position of a window that counts."""
        return self.n_ctx // 2

    @property
    def n_counted(self) -> int:
        """Positions of a window that count: the last one has no token behind it."""
        return self.n_ctx - 1 - self.first

    def prompt(self, window: int) -> list[int]:
        """What the model is given of a window."""
        ids: list[int] = self.tokens[window].tolist()
        return ids if self.bos_id is None else [self.bos_id, *ids[1:]]

    def following(self, window: int) -> np.ndarray:
        """The token behind each position that counts, int32 [n_counted]."""
        return self.tokens[window, self.first + 1 :]

    def difference(self, other: TextWindows) -> str | None:
        """Where another text's windows first differ, in words; None where they are the same."""
        if self.tokens.shape != other.tokens.shape:
            ours, theirs = (f"{len(w)} windows of {w.n_ctx} tokens" for w in (self, other))
            return f"{ours} here, {theirs} there"
        at = np.argwhere(self.tokens != other.tokens)
        if not len(at):
            return None
        window, position = at[0].tolist()
        here, there = self.tokens[window, position], other.tokens[window, position]
        return f"token {position} of window {window} is {here} here, {there} there"
