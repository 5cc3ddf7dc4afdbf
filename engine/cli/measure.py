"""Speed of one open model: prompts of random tokens, greedy answers that do not end by themselves.

Times are taken where a client would take them, at the stream.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..llm import LLM

N_SHORT = 16  # tokens of the prompt before a decode test


@dataclass(frozen=True)
class Decode:
    """One decode measurement. `python_share` is the part of a step's time in which only Python works."""

    tok_per_s: float
    python_share: float


def random_prompt(rng: np.random.Generator, llm: LLM, n: int) -> list[int]:
    """Random token ids of the model's vocabulary."""
    ids: list[int] = rng.integers(0, llm.model.hparams.n_vocab, n).tolist()
    return ids


def n_decode_ctx(n_gen: int, n_seq: int) -> int:
    """The context that one sequence of a decode test needs."""
    return N_SHORT + n_gen + n_seq


def prefill(llm: LLM, prompt: Sequence[int]) -> float:
    """Prompt tokens a second, from the arrival of the request to its first token."""
    (completion,) = llm.generate([prompt], temperature=0, ignore_eos=True, max_tokens=1)
    return len(prompt) / completion.stats.ttft_s


def decode(llm: LLM, prompts: Sequence[Sequence[int]], n_gen: int) -> Decode:
    """Tokens a second of all sequences together, over the steps in which every one of them takes part.

    Sequences start one after the other, so each generates a few more tokens than `n_gen`: the time
    runs from the last one's first token to the first one's last, which is at least `n_gen` steps.
    """
    n_seq = len(prompts)
    counts = [0] * n_seq
    start_s = native_s = 0.0
    counts_at_start = list(counts)
    for delta in llm.generate(prompts, stream=True, temperature=0, ignore_eos=True, max_tokens=n_gen + n_seq):
        counts[delta.index] += len(delta.ids)
        if not start_s and all(counts):
            start_s, native_s, counts_at_start = time.perf_counter(), llm.stats.native_s, list(counts)
        if delta.finish_reason is not None and start_s:
            seconds = time.perf_counter() - start_s
            native = llm.stats.native_s - native_s
            n_steps = counts[delta.index] - counts_at_start[delta.index]
            break
    return Decode(n_steps * n_seq / seconds, min(1.0, max(0.0, 1 - native / seconds)))
