"""How near logits and greedy answers of two computations of one model are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from stored_logits import PROMPT

from pyggml.engine import LLM

PROMPTS = ["abc", "hello there, world"]
EXACT = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Evaluated:
    """What a model says: logits of PROMPT, and greedy answers of one batch.

    `gaps` are the differences of the two best log-probabilities at each token of each answer.
    """

    logits: np.ndarray
    answers: list[tuple[int, ...]]
    gaps: list[list[float]]

    def nmse(self, right: Evaluated) -> float:
        """The normalised mean squared error of the logits."""
        wanted = right.logits.astype(np.float64)
        return float(((self.logits - wanted) ** 2).sum() / (wanted**2).sum())

    def gap_at_parting(self, right: Evaluated) -> float:
        """The largest gap, by the right side, at a token where the answers part; 0 when they never do."""
        return max(map(_gap_at_parting, self.answers, right.answers, right.gaps))


def _gap_at_parting(ours: Sequence[int], right: Sequence[int], gaps: Sequence[float]) -> float:
    return next((gap for a, b, gap in zip(ours, right, gaps) if a != b), 0.0)


def evaluated(path: Path, device: str, *, cache_type: str, max_tokens: int = 12, **options: Any) -> Evaluated:
    """Evaluate a model on devices."""
    shape: dict[str, Any] = {"ctx": 256, "parallel": 2, "threads": 1}
    with LLM(
        path, device=device, cache_type_k=cache_type, cache_type_v=cache_type, **shape, **options
    ) as llm:
        logits = llm.score(PROMPT, logits=True)
        answers = llm.generate(PROMPTS, temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=2)
    gaps = [[entry.top[0][1] - entry.top[1][1] for entry in answer.logprobs] for answer in answers]
    return Evaluated(logits, [answer.ids for answer in answers], gaps)
