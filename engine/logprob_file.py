"""Files of log-probabilities as `llama-perplexity --save-all-logits` writes them and `--kl-divergence` reads them.

Little-endian: the 8 bytes `_logits_`; uint32 tokens a window; int32 tokens of the vocabulary; int32 windows; the token
ids of all windows, int32; then a row for each position of a window's second half but its last. A row is 4 + n_vocab
16-bit words, one more where n_vocab is odd: float32 scale, float32 least log-probability, and for each token a whole
number c that stands for `scale * c + least`. Logits more than 16 below a row's largest are stored as 16 below it.
Source of the layout: tools/perplexity/perplexity.cpp of llama.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .errors import ConfigError, GenerationError
from .text_windows import MIN_WINDOW, TextWindows

MAGIC = b"_logits_"
_HEAD = np.dtype([("magic", "S8"), ("n_ctx", "<u4"), ("n_vocab", "<i4"), ("n_windows", "<i4")])
_N_FACTS = 4  # 16-bit words before the codes of a row
_MAX_CODE = np.float32(65535)
_DEPTH = np.float32(16)  # how far below the largest logit a row reaches
BLOCK = 1 << 18  # numbers of a stretch of rows that is worked on at a time, so that it stays in a cache


class CodedRows(NamedTuple):
    """Rows of a file: uint16 codes [n, n_vocab], float32 scales [n] and least log-probabilities [n]."""

    codes: np.ndarray
    scale: np.ndarray
    least: np.ndarray

    def logprobs(self, row: int, ids: np.ndarray) -> np.ndarray:
        """The log-probabilities of some tokens in one row, float32."""
        values: np.ndarray = self.codes[row, ids] * self.scale[row] + self.least[row]
        return values

    def surprises(self, ids: np.ndarray) -> np.ndarray:
        """Minus the log-probability of one token in each row, float64 [n]."""
        codes = self.codes[np.arange(len(ids)), ids]
        return -(codes * self.scale + self.least).astype(np.float64)

    def above(self, row: int, logprob: float) -> np.ndarray:
        """The tokens of a row with more than that log-probability."""
        scale, least = float(self.scale[row]), float(self.least[row])
        if least > logprob:
            return np.arange(self.codes.shape[1])
        most = (logprob - least) // scale if scale else float(_MAX_CODE)
        return np.flatnonzero(self.codes[row] > np.uint16(min(most, float(_MAX_CODE))))

    def blocks(self) -> Iterator[tuple[int, CodedRows]]:
        """Stretches of rows that are small enough to work on, with the number of the first."""
        for start, stop in stretches(*self.codes.shape):
            yield start, self.cut(start, stop)

    def cut(self, start: int, stop: int) -> CodedRows:
        """Some of the rows."""
        return CodedRows(*(array[start:stop] for array in self))


def stretches(n_rows: int, n_vocab: int) -> Iterator[tuple[int, int]]:
    """Stretches of rows that hold about BLOCK numbers."""
    step = max(1, BLOCK // n_vocab)
    for start in range(0, n_rows, step):
        yield start, min(start + step, n_rows)


def coded(logits: np.ndarray, total: np.ndarray) -> CodedRows:
    """Logits [n, n_vocab] and the logarithm of each row's sum of exp, as a file keeps them."""
    top, low = logits.max(axis=1), logits.min(axis=1)
    low = np.maximum(low, top - _DEPTH)
    scale = ((top - low) / _MAX_CODE).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    steps = logits - low[:, None]
    steps *= inverse[:, None]
    np.rint(steps, out=steps)
    np.clip(steps, 0, _MAX_CODE, out=steps)
    least = low - top - (total - top).astype(np.float32)
    return CodedRows(steps.astype(np.uint16), scale, least.astype(np.float32))


def log_totals(logits: np.ndarray) -> np.ndarray:
    """log of the sum of exp of each row, float64 [n]. Raises GenerationError where that is no number."""
    top = logits.max(axis=1)
    if not np.isfinite(top).all():
        raise GenerationError("logits are NaN or infinite: a computation went wrong")
    below = logits - top[:, None]
    np.exp(below, out=below)
    total: np.ndarray = top + np.log(below.sum(axis=1, dtype=np.float64))
    return total


class LogprobFile:
    """A file that is there, mapped. Raises ConfigError for one that is damaged or something else."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser()
        try:
            size = self.path.stat().st_size
            with open(self.path, "rb") as file:
                head = file.read(_HEAD.itemsize)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror or error}") from error
        if not head.startswith(MAGIC) or len(head) < _HEAD.itemsize:
            raise ConfigError(f"{path} is no file of log-probabilities: it does not begin with {MAGIC.decode()}")
        facts = np.frombuffer(head, _HEAD)[0]
        self.n_ctx, self.n_vocab, n_windows = (int(facts[name]) for name in ("n_ctx", "n_vocab", "n_windows"))
        if self.n_ctx < MIN_WINDOW or self.n_vocab < 1 or n_windows < 1:
            raise ConfigError(
                f"{path}: {n_windows} windows of {self.n_ctx} tokens of a vocabulary of {self.n_vocab} cannot be"
            )
        n_counted = self.n_ctx - 1 - self.n_ctx // 2
        start = _HEAD.itemsize + 4 * n_windows * self.n_ctx
        whole = start + 2 * n_windows * n_counted * n_words(self.n_vocab)
        if size != whole:
            what = "it was cut off" if size < whole else "there is something behind its end"
            raise ConfigError(
                f"{path} has {size} bytes; {n_windows} windows of {self.n_ctx} tokens of a vocabulary of "
                f"{self.n_vocab} take {whole}: {what}"
            )
        tokens = np.memmap(self.path, "<i4", "r", _HEAD.itemsize, (n_windows, self.n_ctx))
        self.tokens: np.ndarray = np.array(tokens, np.int32)
        if self.tokens.min() < 0 or self.tokens.max() >= self.n_vocab:
            raise ConfigError(f"{path} has token ids outside of its vocabulary of {self.n_vocab}")
        self._rows = np.memmap(self.path, "<u2", "r", start, (n_windows, n_counted, n_words(self.n_vocab)))

    def windows(self, bos_id: int | None) -> TextWindows:
        """The token ids as windows."""
        return TextWindows(self.tokens, bos_id)

    def rows(self, window: int) -> CodedRows:
        """The rows of one window, where they lie. Raises ConfigError where its numbers cannot be."""
        rows = self._rows[window]
        facts = np.ascontiguousarray(rows[:, :_N_FACTS]).view("<f4")
        scale, least = facts[:, 0].astype(np.float32), facts[:, 1].astype(np.float32)
        if not (np.isfinite(scale).all() and np.isfinite(least).all() and (scale >= 0).all()):
            raise ConfigError(f"{self.path}: window {window} has log-probabilities that are no numbers")
        return CodedRows(rows[:, _N_FACTS : _N_FACTS + self.n_vocab], scale, least)


def n_words(n_vocab: int) -> int:
    """16-bit words of a row."""
    return _N_FACTS + (n_vocab + 1) // 2 * 2


class LogprobWriter:
    """Writes a file: the whole of it, or none. A context; rows of the windows come in their order."""

    def __init__(self, path: str | os.PathLike[str], windows: TextWindows, n_vocab: int) -> None:
        self.path = Path(path).expanduser()
        self._partial = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._n_vocab = n_vocab
        self._n_left = len(windows) * windows.n_counted
        self._file = open(self._partial, "wb")  # closed by __exit__
        head = np.array([(MAGIC, windows.n_ctx, n_vocab, len(windows))], _HEAD)
        self._file.write(head.tobytes() + windows.tokens.astype("<i4").tobytes())

    def write(self, logits: np.ndarray) -> None:
        """Add the rows of logits [n, n_vocab], float32."""
        for start, stop in stretches(*logits.shape):
            block = coded(logits[start:stop], log_totals(logits[start:stop]))
            rows = np.zeros((stop - start, n_words(self._n_vocab)), "<u2")
            rows[:, :_N_FACTS] = np.stack([block.scale, block.least], axis=1).astype("<f4").view("<u2")
            rows[:, _N_FACTS : _N_FACTS + self._n_vocab] = block.codes
            self._file.write(rows.tobytes())
        self._n_left -= len(logits)

    def __enter__(self) -> LogprobWriter:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._file.close()
        try:
            if kind is None:
                assert self._n_left == 0, "every position was written"
                os.replace(self._partial, self.path)
        finally:
            with suppress(FileNotFoundError):
                self._partial.unlink()
