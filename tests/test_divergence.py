"""The figures of a comparison against the plainest way to compute them."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.engine import ConfigError, GenerationError
from pyggml.engine.divergence import Positions, compare, figures, perplexity, surprises
from pyggml.engine.logprob_file import coded, log_totals
from pyggml.engine.text_windows import TextWindows

RNG = np.random.default_rng(1)
N, N_VOCAB = 50, 3000


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    values: np.ndarray = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return values


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A base's logits, others near them, and the tokens that follow."""
    base = RNG.normal(0, 4, (N, N_VOCAB)).astype(np.float32)
    other = base + RNG.normal(0, 0.1, base.shape).astype(np.float32)
    return base, other, RNG.integers(0, N_VOCAB, N)


def test_runs_are_compared_exactly(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    base, other, following = rows
    p, q = log_softmax(base), log_softmax(other)
    found = compare(base, other, following)
    np.testing.assert_allclose(found.kl, (np.exp(p) * (p - q)).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(found.nll, -q[np.arange(N), following], rtol=1e-12)
    np.testing.assert_allclose(found.nll_base, -p[np.arange(N), following], rtol=1e-12)
    assert np.array_equal(found.is_same_top, p.argmax(axis=1) == q.argmax(axis=1))
    told = figures(found, of_file=False)
    distance = other.astype(np.float64) - base
    assert told["logits"]["largest_distance"] == np.abs(distance).max()
    assert told["logits"]["relative_l2"] == pytest.approx(np.linalg.norm(distance) / np.linalg.norm(base))


def test_files_are_compared_within_their_resolution(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    base, other, following = rows
    p, q = log_softmax(base), log_softmax(other)
    kept = coded(base, log_totals(base))
    right = np.where(p > -16, np.exp(p) * (p - q), 0).sum(axis=1)
    found, between_files = compare(kept, other, following), compare(kept, coded(other, log_totals(other)), following)
    np.testing.assert_allclose(found.kl, right, atol=2e-4)
    np.testing.assert_allclose(between_files.kl, right, atol=2e-4)
    assert found.kl.mean() == pytest.approx(right.mean(), abs=5e-6)
    np.testing.assert_allclose(found.nll, -q[np.arange(N), following], atol=1e-5)


@pytest.mark.parametrize("of_file", [True, False])
def test_equal_logits_are_at_no_distance(of_file: bool, rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    base, _, following = rows
    told = figures(compare(coded(base, log_totals(base)) if of_file else base, base, following), of_file=of_file)
    assert (told["kl"]["maximum"], told["kl"]["minimum"], told["log_ratio"]["mean"]) == (0, 0, 0)
    assert (told["n_identical"], told["same_top"]["mean"]) == (N, 1)


def test_what_a_file_cuts_off_counts_in_full() -> None:
    base, other = np.zeros((1, 8), np.float32), np.zeros((1, 8), np.float32)
    base[0, 0] = other[0, 1] = 30
    found = compare(coded(base, log_totals(base)), other, np.array([0]))
    assert found.kl[0] == pytest.approx(30, abs=1e-3)
    assert not found.is_same_top[0]


def test_statistics_are_those_of_the_values() -> None:
    kl = np.arange(101) / 100
    zeros, same = np.zeros(101), np.arange(101) < 100
    p = Positions(kl, kl, kl, zeros, same, ~same, zeros, zeros, zeros)
    told = figures(p, of_file=True)
    assert told["n_positions"] == 101
    assert told["kl"]["mean"] == pytest.approx(0.5)
    assert told["kl"]["error"] == pytest.approx(kl.std(ddof=1) / np.sqrt(101), rel=1e-6)
    assert (told["kl"]["maximum"], told["kl"]["quantiles"]["99 %"], told["kl"]["median"]) == (1, 0.99, 0.5)
    assert told["same_top"]["mean"] == pytest.approx(100 / 101)
    assert told["n_identical"] == 1
    assert "logits" not in told


def test_perplexity_is_that_of_the_text(rows: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    base, _, following = rows
    nll = -log_softmax(base)[np.arange(N), following]
    np.testing.assert_allclose(surprises(base, following), nll, atol=1e-5)
    found = perplexity(nll)
    assert found["value"] == pytest.approx(np.exp(nll.mean()))
    assert found["error"] == pytest.approx(np.exp(nll.mean()) * nll.std(ddof=1) / np.sqrt(N), rel=1e-6)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(value: float) -> None:
    logits = np.zeros((2, 4), np.float32)
    logits[1, 2] = value
    with pytest.raises(GenerationError, match="NaN or infinite"):
        surprises(logits, np.zeros(2, np.int64))


def test_windows_are_cut_as_llama_perplexity_cuts_them() -> None:
    text = TextWindows.cut(range(25), 8, 99)
    assert (len(text), text.first, text.n_counted) == (3, 4, 3)
    assert text.prompt(1) == [99, 9, 10, 11, 12, 13, 14, 15]
    assert text.following(1).tolist() == [13, 14, 15]
    assert TextWindows.cut(range(25), 7, None, 1).prompt(0) == [0, 1, 2, 3, 4, 5, 6]
    assert TextWindows.cut(range(25), 7, None).n_counted == 3


@pytest.mark.parametrize(
    ("n_ctx", "most", "expected"), [(26, None, "fewer than one window of 26"), (8, 4, "3 windows of 8, and 4")]
)
def test_a_short_text_is_refused(n_ctx: int, most: int | None, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        TextWindows.cut(range(25), n_ctx, None, most)


def test_the_first_different_token_is_named() -> None:
    here, there = np.zeros((2, 5), np.int32), np.zeros((2, 5), np.int32)
    assert TextWindows(here, None).difference(TextWindows(there, 1)) is None
    there[1, 3] = 7
    assert TextWindows(here, None).difference(TextWindows(there, None)) == "token 3 of window 1 is 0 here, 7 there"
    shorter = TextWindows(here[:1], 1)
    assert TextWindows(here, None).difference(shorter) == "2 windows of 5 tokens here, 1 windows of 5 tokens there"
