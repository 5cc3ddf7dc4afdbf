"""The native choice of the best tokens against numpy's sort."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pyggml import ShapeError
from pyggml.candidates import HAS_INF, HAS_NAN, NONE_LEFT, mask_disallowed, top_candidates

FloatRow = npt.NDArray[np.float32]

# Around the native code's lanes (64), tiles (up to 4096) and sorting methods (2048).
SIZES = [1, 2, 3, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 20000]


def _random(generator: np.random.Generator, n: int) -> FloatRow:
    return generator.standard_normal(n).astype(np.float32) * np.float32(5)


def _tied(generator: np.random.Generator, n: int) -> FloatRow:
    return np.round(_random(generator, n) / 4)


def _both_zeros(generator: np.random.Generator, n: int) -> FloatRow:
    return np.where(generator.random(n) < 0.5, np.float32(-0.0), np.float32(0.0))


def _mostly_banned(generator: np.random.Generator, n: int) -> FloatRow:
    row = _random(generator, n)
    row[generator.random(n) < 0.9] = -np.inf
    row[generator.integers(n)] = 1.0
    return row


def _rising(generator: np.random.Generator, n: int) -> FloatRow:
    return np.sort(_random(generator, n))


def _huge(generator: np.random.Generator, n: int) -> FloatRow:
    return _random(generator, n) * np.float32(1e37)


ROWS = [_random, _tied, _both_zeros, _mostly_banned, _rising, _huge]


@pytest.mark.parametrize("make", ROWS)
@pytest.mark.parametrize("n_vocab", SIZES)
def test_the_k_largest_come_sorted_with_lower_ids_first_among_equals(make, n_vocab) -> None:
    generator = np.random.default_rng(n_vocab)
    ks = [1, 2, 40, 1000, n_vocab, 0, -5, 10**9]
    logits = np.stack([make(generator, n_vocab) for _ in ks])
    best = top_candidates(logits, ks)
    for row, k, ids, values, found in zip(logits, ks, best.ids, best.values, best.found):
        possible = np.argsort(-row, kind="stable")[: np.count_nonzero(row > -np.inf)]
        expected = possible[:k] if k > 0 else possible
        assert found == len(expected)
        np.testing.assert_array_equal(ids[:found], expected)
        np.testing.assert_array_equal(values[:found], row[expected])


@pytest.mark.parametrize("scale", [1.0, 0.5, 40.0])
@pytest.mark.parametrize("make", [_random, _tied, _mostly_banned, _rising])
@pytest.mark.parametrize("n_vocab", SIZES)
def test_logsumexp_is_of_the_whole_row(make, n_vocab, scale) -> None:
    row = make(np.random.default_rng(n_vocab), n_vocab)
    best = top_candidates(row[None], [1], scale=[scale])
    scaled = row.astype(np.float64) * scale
    expected = scaled.max() + np.log(np.exp(scaled - scaled.max()).sum())
    assert best.logsumexp[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("position", [0, 64, 4999])
@pytest.mark.parametrize(("value", "code"), [(np.nan, HAS_NAN), (-np.nan, HAS_NAN), (np.inf, HAS_INF)])
def test_a_bad_value_spoils_its_own_row_only(position, value, code) -> None:
    logits = np.random.default_rng(0).standard_normal((3, 5000)).astype(np.float32)
    logits[1, position] = value
    best = top_candidates(logits, [3, 3, 3], scale=[1.0, 1.0, 1.0])
    assert best.found.tolist() == [3, code, 3]
    np.testing.assert_array_equal(best.ids[2], np.argsort(-logits[2])[:3])


def test_a_row_of_minus_infinity_has_no_candidates() -> None:
    best = top_candidates(np.full((1, 100), -np.inf, np.float32), [5])
    assert best.found.tolist() == [NONE_LEFT]


def test_no_rows_give_no_candidates() -> None:
    assert top_candidates(np.zeros((0, 100), np.float32), []).ids.shape[0] == 0


@pytest.mark.parametrize(
    ("logits", "k"),
    [
        (np.zeros((2, 8)), [1, 1]),
        (np.zeros(8, np.float32), [1]),
        (np.zeros((8, 2), np.float32).T, [1, 1]),
        (np.zeros((2, 8), np.float32), [1]),
    ],
    ids=["float64", "one dimension", "not contiguous", "too few k"],
)
def test_arrays_that_do_not_fit_are_refused(logits, k) -> None:
    with pytest.raises(ShapeError):
        top_candidates(logits, k)


@pytest.mark.parametrize("n_vocab", [1, 31, 32, 33, 1000])
def test_the_mask_bans_exactly_the_tokens_whose_bit_is_clear(n_vocab) -> None:
    is_allowed = np.random.default_rng(n_vocab).random(n_vocab) < 0.5
    words = np.zeros((n_vocab + 31) // 32, np.uint32)
    for token in np.flatnonzero(is_allowed):
        words[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    row = np.arange(n_vocab, dtype=np.float32)
    mask_disallowed(row, words.view(np.int32))
    np.testing.assert_array_equal(row, np.where(is_allowed, np.arange(n_vocab), -np.inf))


def test_the_mask_does_not_hide_broken_values() -> None:
    row = np.array([np.nan, np.inf, 3.0], np.float32)
    mask_disallowed(row, np.zeros(1, np.int32))
    np.testing.assert_array_equal(row, np.array([np.nan, np.inf, -np.inf], np.float32))


def test_a_mask_that_is_too_short_is_refused() -> None:
    with pytest.raises(ShapeError, match="2 contiguous words"):
        mask_disallowed(np.zeros(33, np.float32), np.zeros(1, np.int32))
