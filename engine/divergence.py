"""How far one run's logits are from another's at the same tokens: position by position, and in figures over all.

The base is another run's logits, compared in float64, or rows of a file with log-probabilities in 16 bits. A file's
divergence is that of `llama-perplexity --kl-divergence`, the sum over tokens with a log-probability above -16 as they
are stored; but this run's are rounded too, so that equal logits give 0 and not the rounding of a file. One position's
may be off by 1e-4, and below 0. A file keeps no log-probability more than 16 below the largest: those of the text's own
tokens are cut off there in both runs before they are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .logprob_file import CodedRows, coded, log_totals, stretches

QUANTILES = (0.999, 0.99, 0.95, 0.9, 0.1, 0.05, 0.01, 0.001)
_LEAST_LOGPROB = -16.0


@dataclass(frozen=True)
class Positions:
    """An entry for each position: the divergence, and minus the log-probability of the token behind it.

    `nll` is this run's, `nll_kept` as a file would keep it, `nll_base` the base's. `is_same_top` tells whether both
    find the same token likeliest, `is_identical` whether all numbers are equal, bit for bit or as far as a file keeps
    them. Of two runs `largest` is the largest distance of two logits, `error2` and `size2` are the squared length of
    the distance and of the base's logits; 0 where the base is a file.
    """

    kl: np.ndarray
    nll: np.ndarray
    nll_kept: np.ndarray
    nll_base: np.ndarray
    is_same_top: np.ndarray
    is_identical: np.ndarray
    largest: np.ndarray
    error2: np.ndarray
    size2: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Positions]) -> Positions:
        """Several stretches as one."""
        return cls(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)))

    def __len__(self) -> int:
        return len(self.kl)


def surprises(logits: np.ndarray, following: np.ndarray) -> np.ndarray:
    """Minus the log-probability of the token that follows each row, float64 [n]."""
    found = np.empty(len(logits))
    for start, stop in stretches(*logits.shape):
        block = logits[start:stop]
        found[start:stop] = log_totals(block) - block[np.arange(stop - start), following[start:stop]]
    return found


def compare(base: np.ndarray | CodedRows, logits: np.ndarray | CodedRows, following: np.ndarray) -> Positions:
    """Rows beside those of the base, both [n, n_vocab] and followed by the same tokens; of files both or the base."""
    parts = []
    if isinstance(base, CodedRows):
        for start, rows in base.blocks():
            stop = start + len(rows.codes)
            ours = logits.cut(start, stop) if isinstance(logits, CodedRows) else logits[start:stop]
            parts.append(_beside_file(rows, ours, following[start:stop]))
    else:
        assert not isinstance(logits, CodedRows), "a run is compared with a file, not a file with a run"
        for start, stop in stretches(*logits.shape):
            parts.append(_beside_run(base[start:stop], logits[start:stop], following[start:stop]))
    return Positions.joined(parts)


def _beside_file(base: CodedRows, logits: np.ndarray | CodedRows, following: np.ndarray) -> Positions:
    """Rounded as the file's rows are, so that equal logits are at no distance; but what a file cuts off stays."""
    n = len(following)
    if isinstance(logits, CodedRows):
        ours, total = logits, None
        nll = ours.surprises(following)
    else:
        total = log_totals(logits)
        ours = coded(logits, total)
        nll = total - logits[np.arange(n), following]
    kl, zeros = np.empty(n), np.zeros(n)
    for r in range(n):
        counted = base.above(r, _LEAST_LOGPROB)
        right, other = base.logprobs(r, counted).astype(np.float64), ours.logprobs(r, counted)
        if total is not None and not isinstance(logits, CodedRows):
            cut_off = ours.codes[r, counted] == 0
            other = np.where(cut_off, logits[r, counted] - total[r], other)
        kl[r] = (np.exp(right) * (right - other)).sum()
    identical = (ours.codes == base.codes).all(axis=1) & (ours.scale == base.scale)
    return Positions(
        kl, nll, ours.surprises(following), base.surprises(following),
        ours.codes.argmax(axis=1) == base.codes.argmax(axis=1), identical, zeros, zeros, zeros,
    )  # fmt: skip


def _beside_run(base: np.ndarray, logits: np.ndarray, following: np.ndarray) -> Positions:
    at = np.arange(len(logits))
    right, ours = base.astype(np.float64), logits.astype(np.float64)
    total_base, total = log_totals(right), log_totals(ours)
    distance = right - ours
    kl = (np.exp(right - total_base[:, None]) * distance).sum(axis=1) - (total_base - total)
    nll = total - ours[at, following]
    return Positions(
        np.maximum(kl, 0.0), nll, nll, total_base - right[at, following],
        base.argmax(axis=1) == logits.argmax(axis=1), (base == logits).all(axis=1),
        np.abs(distance).max(axis=1), np.square(distance).sum(axis=1), np.square(right).sum(axis=1),
    )  # fmt: skip


def mean_of(values: np.ndarray) -> dict[str, float]:
    """The mean and its standard error."""
    n = len(values)
    return {"mean": float(values.mean()), "error": float(values.std() / np.sqrt(n - 1)) if n > 1 else 0.0}


def perplexity(nll: np.ndarray) -> dict[str, float]:
    """The perplexity and its standard error."""
    found = mean_of(nll)
    value = float(np.exp(found["mean"]))
    return {"value": value, "error": value * found["error"]}


def figures(p: Positions, *, of_file: bool) -> dict[str, Any]:
    """All figures over these positions, as plain values. Without `of_file` those of logits too."""
    change = np.exp(-p.nll_kept) - np.exp(-p.nll_base)
    found: dict[str, Any] = {
        "n_positions": len(p),
        "kl": mean_of(p.kl) | {
            "maximum": float(p.kl.max()),
            "median": float(np.median(p.kl)),
            "minimum": float(p.kl.min()),
            "quantiles": {f"{100 * q:g} %": float(value) for q, value in zip(QUANTILES, np.quantile(p.kl, QUANTILES))},
        },
        "same_top": mean_of(p.is_same_top.astype(np.float64)),
        "n_identical": int(p.is_identical.sum()),
        "perplexity": perplexity(p.nll),
        "base_perplexity": perplexity(p.nll_base),
        "log_ratio": mean_of(p.nll_kept - p.nll_base),
        "probability_change": mean_of(change) | {"rms": float(np.sqrt(np.square(change).mean()))},
    }  # fmt: skip
    if not of_file:
        size2 = float(p.size2.sum())
        found["logits"] = {
            "largest_distance": float(p.largest.max()),
            "relative_l2": float(np.sqrt(p.error2.sum() / size2)) if size2 else 0.0,
        }
    return found
