"""Sampling on made-up logits: reproducible choices, filters, penalties, log-probabilities, broken rows.

The distribution tests use fixed seeds, so they give the same verdict every time; were the seeds free, a right sampler
would fail one with a chance of 1e-6.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.engine.errors import GenerationError, RequestError
from pyggml.engine.sampler import N_FIRST_LOOK, Sampled, Sampler, sample
from pyggml.engine.sampling_params import SamplingParams

FloatRow = npt.NDArray[np.float32]

# Chi-square quantiles at 1 - 1e-6, by degrees of freedom.
CHI_SQUARE = {1: 23.93, 2: 27.63, 3: 30.66, 4: 33.38, 5: 35.89, 7: 40.52, 9: 44.81}

OPEN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0}


def _sampler(n_vocab: int, *, index: int = 0, prompt_ids: Sequence[int] = (), **params: object) -> Sampler:
    return Sampler(SamplingParams(**params), n_vocab=n_vocab, index=index, prompt_ids=prompt_ids)  # type: ignore[arg-type]


class Allowed:
    """A constraint that always allows the same tokens."""

    is_awake = True

    def __init__(self, mask: npt.NDArray[np.int32] | None) -> None:
        self._mask = mask

    def mask(self) -> npt.NDArray[np.int32] | None:
        return self._mask

    def accept(self, token: int) -> None:
        pass


def _one(row: Sequence[float] | FloatRow, allowed: npt.NDArray[np.int32] | None = None, **params: object) -> Sampled:
    logits = np.array([row], np.float32)
    sampler = _sampler(logits.shape[1], **params)
    sampler.constraint = Allowed(allowed)  # type: ignore[assignment]
    return sample(logits, [sampler])[0]


def _flat_runs(n_tokens: int, *requests: dict[str, object], n_vocab: int = 16) -> list[list[int]]:
    """Tokens of several sequences in one batch, all logits equal."""
    samplers = [_sampler(n_vocab, **request) for request in requests]  # type: ignore[arg-type]
    steps = [sample(np.zeros((len(samplers), n_vocab), np.float32), samplers) for _ in range(n_tokens)]
    return [[step[r].id for step in steps] for r in range(len(samplers))]


def _counts(row: FloatRow, n_draws: int, **params: object) -> npt.NDArray[np.int64]:
    sampler = _sampler(row.size, seed=1234, **params)
    tokens = [sample(row[None].copy(), [sampler])[0].id for _ in range(n_draws)]
    return np.bincount(tokens, minlength=row.size)


# Reproducible choices


def test_a_seeded_sequence_does_not_depend_on_its_neighbours() -> None:
    mine: dict[str, object] = {"seed": 42, "temperature": 0.8}
    alone = _flat_runs(16, mine)[0]
    for _ in range(4):
        assert _flat_runs(16, mine, {"temperature": 0.8})[0] == alone
        assert _flat_runs(16, {"seed": 7, "top_k": 0}, mine)[1] == alone
        assert _flat_runs(16, {"temperature": 0}, mine, {"logprobs": 3, "presence_penalty": 1})[1] == alone


@pytest.mark.parametrize("seed", [None, -1])
def test_without_a_seed_answers_differ(seed) -> None:
    first, second = _flat_runs(16, {"seed": seed}, {"seed": seed})
    assert first != second


def test_choices_of_one_seeded_request_differ_and_come_again() -> None:
    requests = [{"seed": 1, "index": index} for index in range(3)]
    first = _flat_runs(16, *requests)
    assert len({tuple(tokens) for tokens in first}) == 3
    assert _flat_runs(16, *requests) == first


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_every_seed_is_a_seed_of_its_own(seed) -> None:
    tokens = _flat_runs(16, {"seed": seed})[0]
    assert _flat_runs(16, {"seed": seed})[0] == tokens
    assert _flat_runs(16, {"seed": 12345})[0] != tokens


# Greedy and extreme settings


@pytest.mark.parametrize(
    "params",
    [{"top_k": 0}, {"top_k": 1}, {"top_k": -1}, {"top_k": 10**9}, {"top_p": 0}, {"top_p": 1}, {"min_p": 1}],
    ids=str,
)
@pytest.mark.parametrize("n_vocab", [16, 5000])
def test_temperature_0_takes_the_most_likely(params, n_vocab) -> None:
    row = np.random.default_rng(3).standard_normal(n_vocab).astype(np.float32)
    result = _one(row, temperature=0, logprobs=1, **params)
    assert result.id == int(row.argmax())
    assert np.isfinite(result.logprob)


def test_among_equal_logits_greedy_takes_the_lowest_id() -> None:
    assert _one([0.0, 5.0, 5.0], temperature=0).id == 1


@pytest.mark.parametrize("params", [{"top_p": 0}, {"min_p": 1}, {"top_k": 1}, {"temperature": 1e-6}], ids=str)
@pytest.mark.parametrize("n_vocab", [16, 5000])
def test_the_tightest_filters_leave_the_most_likely(params, n_vocab) -> None:
    row = np.random.default_rng(3).standard_normal(n_vocab).astype(np.float32)
    for seed in range(20):
        assert _one(row, **{"temperature": 2.0, "top_k": 0, "seed": seed} | params).id == int(row.argmax())


@pytest.mark.parametrize("temperature", [1e-8, 1e-6, 2.0])
@pytest.mark.parametrize("size", [1.0, 1e30])
def test_extreme_temperatures_and_logits_stay_finite(temperature, size, recwarn) -> None:
    result = _one([1 * size, -2 * size, -np.inf], temperature=temperature, top_k=0, logprobs=2)
    assert result.error is None and result.id in (0, 1)
    assert np.isfinite(result.logprob)
    assert not recwarn.list


# Distributions

PEAKED = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05], np.float32))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (OPEN, [0.4, 0.3, 0.15, 0.1, 0.05]),
        (OPEN | {"temperature": 2.0}, np.sqrt([0.4, 0.3, 0.15, 0.1, 0.05])),
        (OPEN | {"temperature": 0.5}, np.square([0.4, 0.3, 0.15, 0.1, 0.05])),
        (OPEN | {"top_k": 3}, [0.4, 0.3, 0.15, 0, 0]),
        (OPEN | {"top_p": 0.69}, [0.4, 0.3, 0, 0, 0]),
        (OPEN | {"top_p": 0.71}, [0.4, 0.3, 0.15, 0, 0]),
        (OPEN | {"min_p": 0.24}, [0.4, 0.3, 0.15, 0.1, 0]),
        (OPEN | {"min_p": 0.26}, [0.4, 0.3, 0.15, 0, 0]),
        # top-p counts what top-k left: 0.4 / 0.7 reaches 0.55
        (OPEN | {"top_k": 2, "top_p": 0.55}, [1, 0, 0, 0, 0]),
        # the filters see temperature 1, as in llama.cpp
        (OPEN | {"top_p": 0.69, "temperature": 2.0}, [np.sqrt(0.4), np.sqrt(0.3), 0, 0, 0]),
        (OPEN | {"min_p": 0.26, "temperature": 2.0}, [np.sqrt(0.4), np.sqrt(0.3), np.sqrt(0.15), 0, 0]),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_tokens_follow_the_filtered_distribution(params, expected) -> None:
    n_draws = 4000
    counts = _counts(PEAKED, n_draws, **params)
    share = np.array(expected) / np.sum(expected)
    assert counts[share == 0].sum() == 0
    live = share > 0
    if live.sum() > 1:
        chi_square = ((counts - n_draws * share)[live] ** 2 / (n_draws * share[live])).sum()
        assert chi_square < CHI_SQUARE[int(live.sum()) - 1]


@pytest.mark.parametrize("params", [OPEN, OPEN | {"temperature": 1.5}], ids=str)
def test_without_filters_the_whole_vocabulary_is_drawn_from(params) -> None:
    """Most of the mass lies beyond the candidates that are looked at first."""
    n_vocab = 4 * N_FIRST_LOOK
    row = np.random.default_rng(5).standard_normal(n_vocab).astype(np.float32)
    weights = np.exp(row.astype(np.float64) / params["temperature"])
    order = np.argsort(-row)
    edges = [order[i * n_vocab // 8 : (i + 1) * n_vocab // 8] for i in range(8)]
    share = np.array([weights[part].sum() for part in edges]) / weights.sum()
    n_draws = 2000
    counts = _counts(row, n_draws, **params)
    observed = np.array([counts[part].sum() for part in edges])
    assert ((observed - n_draws * share) ** 2 / (n_draws * share)).sum() < CHI_SQUARE[7]


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0], ids=["flat", "wide", "peaked"])
@pytest.mark.parametrize(
    "params",
    [
        OPEN | {"top_p": 0.3},
        OPEN | {"top_p": 0.95},
        OPEN | {"min_p": 0.05},
        OPEN | {"min_p": 0.01, "top_p": 0.9},
        OPEN | {"top_p": 0.9, "temperature": 1.7},
        OPEN,
    ],
    ids=str,
)
def test_looking_at_few_candidates_first_changes_no_token(params, spread) -> None:
    """The choice equals that of a sampler which sorts everything at once."""
    n_vocab = 3 * N_FIRST_LOOK
    generator = np.random.default_rng(11)
    quick, full = (_sampler(n_vocab, seed=9, **params) for _ in range(2))
    for _ in range(30):
        row = (generator.standard_normal(n_vocab) * spread).astype(np.float32)
        order = np.argsort(-row, kind="stable").astype(np.int32)
        assert sample(row[None].copy(), [quick])[0].id == full.choose(order, row[order], 0.0, full.draw(), True)


# Bias, penalties and bans


@pytest.mark.parametrize(
    ("row", "params", "expected"),
    [
        ([0.0, 1.0, 2.0], {"logit_bias": {0: 5.0}}, 0),
        ([0.0, 1.0, 2.0], {"logit_bias": {2: -100, 1: float("-inf")}}, 0),
        ([1.0, 1.5], {"repeat_penalty": 2.0, "prompt_ids": [1]}, 0),
        ([-1.0, -1.5], {"repeat_penalty": 2.0, "prompt_ids": [0]}, 1),
        ([1.0, 1.5], {"repeat_penalty": 2.0, "prompt_ids": [1, 0], "repeat_last_n": 1}, 1),
        ([1.0, 1.5], {"repeat_penalty": 2.0, "prompt_ids": [1] + [5] * 99, "repeat_last_n": 64}, 1),
        ([1.0, 1.5], {"repeat_penalty": 2.0, "prompt_ids": [1] + [5] * 99, "repeat_last_n": -1}, 0),
        ([1.0, 1.5], {"repeat_penalty": 2.0, "prompt_ids": [1], "repeat_last_n": 0}, 1),
        ([1.0, 1.5], {"presence_penalty": 2.0, "prompt_ids": [1]}, 1),
        ([1.0, 1.5], {"frequency_penalty": 2.0, "prompt_ids": [1, 1, 1]}, 1),
    ],
    ids=str,
)
def test_bias_and_penalties_move_the_choice(row, params, expected) -> None:
    assert _one(row, temperature=0, **params).id == expected


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"presence_penalty": 0.6}, [1, 0, 1, 1]),  # once, however often
        ({"frequency_penalty": 0.3}, [1, 1, 0, 1]),  # each time
        ({"repeat_penalty": 2.0, "repeat_last_n": 1}, [1, 0, 1, 0]),  # forgotten after one token
        ({}, [1, 1, 1, 1]),
    ],
    ids=str,
)
def test_penalties_count_the_answer(params, expected) -> None:
    sampler = _sampler(2, temperature=0, **params)
    tokens = [sample(np.array([[1.0, 1.5]], np.float32), [sampler])[0].id for _ in range(4)]
    assert tokens == expected


@pytest.mark.parametrize("token", [16, "16", 10**9])
def test_a_bias_outside_the_vocabulary_is_refused(token) -> None:
    with pytest.raises(RequestError, match="from 0 to 15"):
        _sampler(16, logit_bias={token: 1})


def test_banned_tokens_never_come() -> None:
    sampler = Sampler(SamplingParams(temperature=0), n_vocab=3, banned=[2])
    assert sample(np.array([[0.0, 1.0, 2.0]], np.float32), [sampler])[0].id == 1


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_only_allowed_tokens_come(temperature) -> None:
    row = np.arange(64, dtype=np.float32)
    for seed in range(10):
        result = _one(row, np.array([0b100110, 0], np.int32), temperature=temperature, top_k=0, seed=seed)
        assert result.id in (1, 2, 5)


def test_a_mask_without_tokens_ends_the_sequence() -> None:
    assert "no token is left" in str(_one([1.0, 2.0], np.zeros(1, np.int32)).error)


def test_penalised_prompt_tokens_beyond_the_vocabulary_are_ignored() -> None:
    assert _one([1.0, 2.0], temperature=0, repeat_penalty=3.0, prompt_ids=[7, -1]).id == 1


# Log-probabilities


def _log_softmax(row: Sequence[float]) -> npt.NDArray[np.float64]:
    values = np.array(row, np.float64)
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 2.0, "top_k": 1},
        {"logit_bias": {0: -100.0, 1: 50.0}},
        {"repeat_penalty": 5.0, "prompt_ids": [3]},
        OPEN | {"temperature": 0.5},
    ],
    ids=str,
)
@pytest.mark.parametrize("allowed", [None, 0b0110])
def test_logprobs_are_the_models_own(params, allowed) -> None:
    row = [0.5, 1.0, -2.0, 3.0]
    expected = _log_softmax(row)
    mask = None if allowed is None else np.array([allowed], np.int32)
    result = _one(row, mask, logprobs=3, seed=3, **params)
    assert result.logprob == pytest.approx(expected[result.id], abs=1e-6)
    assert [token for token, _ in result.top] == [3, 1, 0]
    assert [logprob for _, logprob in result.top] == pytest.approx(expected[[3, 1, 0]], abs=1e-6)


def test_logprobs_are_never_positive_and_sum_to_at_most_one() -> None:
    result = _one([900.0, 1.0, 2.0], logprobs=3)
    assert result.logprob <= 0
    assert sum(np.exp(logprob) for _, logprob in result.top) <= 1 + 1e-6


@pytest.mark.parametrize(("asked", "n_top"), [(0, 0), (2, 2), (20, 3)])
def test_as_many_logprobs_come_as_were_asked_for_and_exist(asked, n_top) -> None:
    result = _one([1.0, 2.0, 3.0, -np.inf], temperature=0, logprobs=asked)
    assert len(result.top) == n_top
    assert result.logprob is not None


def test_without_being_asked_no_logprob_is_given() -> None:
    assert _one([1.0, 2.0], seed=1)[1:] == (None, (), None)


# Broken rows


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0}, {"logprobs": 2}, {"logit_bias": {1: -100}}, {"logit_bias": {1: float("-inf")}}]
)
def test_a_broken_row_fails_its_own_sequence_only(value, params) -> None:
    logits = np.ones((3, 40), np.float32)
    logits[1, 1] = value
    samplers = [_sampler(40, seed=1), _sampler(40, **params), _sampler(40, seed=1)]
    samplers[1].constraint = Allowed(np.full(2, 1, np.int32))  # type: ignore[assignment]
    first, broken, last = sample(logits, samplers)
    assert isinstance(broken.error, GenerationError) and broken.id == -1
    assert first.error is None and first.id == last.id >= 0
