"""Rows chosen together give what each gives alone."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml import top_candidates
from pyggml.engine.choice import Knobs, choose_rows
from pyggml.engine.sampler import Sampler, sample
from pyggml.engine.sampling_params import SamplingParams

N_VOCAB = 300


def params_of(rng: np.random.Generator) -> SamplingParams:
    return SamplingParams(
        temperature=float(rng.choice([0.0, 1e-6, 0.3, 1.0, 2.0])),
        top_k=int(rng.choice([1, 2, 40, 299])),
        top_p=float(rng.choice([0.0, 0.1, 0.9, 1.0])),
        min_p=float(rng.choice([0.0, 0.05, 1.0])),
        seed=int(rng.integers(1000)),
        logprobs=None if rng.random() < 0.8 else 3,
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_row_in_company_gets_the_token_that_it_gets_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        n_rows = int(rng.integers(1, 17))
        logits = (rng.normal(size=(n_rows, N_VOCAB)) * rng.choice([0.0, 1.0, 8.0])).astype(np.float32)
        chosen = [params_of(rng) for _ in range(n_rows)]
        together = sample(logits.copy(), [Sampler(p, n_vocab=N_VOCAB) for p in chosen])
        alone = [sample(logits[r : r + 1].copy(), [Sampler(p, n_vocab=N_VOCAB)])[0] for r, p in enumerate(chosen)]
        assert together == alone


@pytest.mark.parametrize("seed", range(5))
def test_rows_chosen_together_follow_the_arithmetic_of_one(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    logits = (rng.normal(size=(16, N_VOCAB)) * 4).astype(np.float32)
    samplers = [Sampler(params_of(rng), n_vocab=N_VOCAB) for _ in range(16)]
    best = top_candidates(logits, [s.n_candidates for s in samplers])
    numbers = rng.random(16)
    expected, knobs = [], []
    for r, (sampler, number) in enumerate(zip(samplers, numbers)):
        n, p = sampler.n_candidates, sampler.params
        expected.append(sampler.choose(best.ids[r, :n], best.values[r, :n], 0.0, float(number), True))
        knobs.append(Knobs(n, 1.0, 0.0, 1.0, 0.0) if p.is_greedy else Knobs(n, p.top_p, p.min_p, p.temperature, number))
    assert choose_rows(best.ids, best.values, knobs) == expected
