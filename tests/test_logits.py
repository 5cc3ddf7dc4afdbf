"""Choosing from the best that a device found gives what choosing from the whole rows gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyggml import HAS_INF, HAS_NAN, NONE_LEFT, Candidates, merged_candidates, top_candidates
from pyggml.engine import SamplingParams
from pyggml.engine.logits import Logits
from pyggml.engine.sampler import Sampler, sample

N_VOCAB, K = 1000, 64


def found_by_device(rows: np.ndarray) -> Logits:
    """Rows as a device leaves them: the K best and the log-sum-exp at scale 1."""
    return Logits(lambda: rows.copy(), [top_candidates(rows, [K] * len(rows), scale=[1.0] * len(rows))])


@pytest.mark.parametrize(
    ("options", "is_served"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 0, "logprobs": 5}, True),
        ({"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.05}, True),
        ({"temperature": 0.8, "top_k": 40, "logprobs": 3}, True),
        ({"temperature": 1.0, "top_k": 0}, False),
        ({"temperature": 0.8, "top_k": 65}, False),
        ({"temperature": 0, "logit_bias": {3: -5.0}}, False),
        ({"temperature": 0, "logit_bias": dict.fromkeys(range(10), -np.inf)}, True),
        ({"temperature": 0.8, "top_k": 40, "logprobs": 2, "logit_bias": dict.fromkeys(range(10), -np.inf)}, True),
        ({"temperature": 0.8, "top_k": 60, "logit_bias": dict.fromkeys(range(10), -np.inf)}, False),
        ({"temperature": 0, "repeat_penalty": 1.2}, False),
        ({"temperature": 0, "frequency_penalty": 0.5}, False),
    ],
)
def test_the_choice_is_the_same(options: dict[str, Any], is_served: bool) -> None:
    rng = np.random.default_rng(1)
    params = SamplingParams(seed=7, **options)
    ours, theirs = (Sampler(params, n_vocab=N_VOCAB) for _ in range(2))
    assert ours.is_served_by(K) is is_served
    for _ in range(20):
        rows = (3 * rng.standard_normal((1, N_VOCAB))).astype(np.float32)
        fetched: list[int] = []
        rows[0, 5] = 20.0  # a banned token is the likeliest in some of the cases
        logits = Logits(lambda: fetched.append(1) or rows.copy(), [found_by_device(rows).best])  # noqa: B023
        (got,), (right,) = sample(logits, [ours]), sample(rows.copy(), [theirs])
        assert got == right
        assert bool(fetched) is not is_served


def test_taken_rows_are_those_of_their_slots() -> None:
    rows = np.random.default_rng(2).standard_normal((4, N_VOCAB)).astype(np.float32)
    taken = found_by_device(rows).take([3, 1])
    np.testing.assert_array_equal(taken.rows(), rows[[3, 1]])
    np.testing.assert_array_equal(taken.best.ids[:, 0], rows[[3, 1]].argmax(axis=1))
    assert taken.value(0, 17) == rows[3, 17]


def test_the_likeliest_of_parts_is_the_first_of_the_largest() -> None:
    rows = np.zeros((3, N_VOCAB), np.float32)
    rows[0, [900, 100, 600]], rows[1, 999], rows[2, [500, 499]] = 2.0, 1.0, 3.0
    halves = [top_candidates(np.ascontiguousarray(h), [K] * 3, scale=[1.0] * 3) for h in np.split(rows, 2, axis=1)]
    assert Logits(lambda: rows, halves, [0, 500]).greedy() == [100, 999, 499]
    assert Logits(lambda: rows, halves, [0, 500], [2]).greedy() == [499]
    broken = halves[0]._replace(found=np.array([HAS_NAN, K, K], np.int32))
    assert Logits(lambda: rows, [broken, halves[1]], [0, 500]).greedy() is None
    for r, token in enumerate([100, 999, 499]):
        alone = [Candidates(*(column[r : r + 1] for column in half)) for half in halves]
        assert Logits(lambda: rows, alone, [0, 500]).greedy() == [token]
        alone[1] = alone[1]._replace(found=np.array([HAS_NAN], np.int32))
        assert Logits(lambda: rows, alone, [0, 500]).greedy() is None


@pytest.mark.parametrize("cuts", [[500], [100, 130], [999], [300, 600, 900]])
def test_candidates_of_parts_make_those_of_the_whole(cuts: list[int]) -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(-20, 20, (5, N_VOCAB)).astype(np.float32)  # many equal values
    rows[1, rng.random(N_VOCAB) < 0.97] = -np.inf
    starts = [0, *cuts]
    parts = [top_candidates(np.ascontiguousarray(p), [K] * 5, scale=[1.0] * 5) for p in np.split(rows, cuts, axis=1)]
    parts = [padded(part) for part in parts]
    got, right = merged_candidates(parts, starts), top_candidates(rows, [K] * 5, scale=[1.0] * 5)
    np.testing.assert_array_equal(got.found, right.found)
    for r, n in enumerate(right.found):
        np.testing.assert_array_equal(got.ids[r, :n], right.ids[r, :n])
        np.testing.assert_array_equal(got.values[r, :n], right.values[r, :n])
    np.testing.assert_allclose(got.logsumexp, right.logsumexp, rtol=1e-6)


def padded(part: Any) -> Any:
    """Candidates as a card gives them: K columns, of which those beyond `found` hold anything."""
    n = part.ids.shape[1]
    return part._replace(
        ids=np.pad(part.ids, ((0, 0), (0, K - n))), values=np.pad(part.values, ((0, 0), (0, K - n)), constant_values=99)
    )


@pytest.mark.parametrize(
    ("founds", "found"),
    [
        ((HAS_NAN, 64), HAS_NAN), ((64, HAS_INF), HAS_INF), ((HAS_INF, HAS_NAN), HAS_NAN),
        ((NONE_LEFT, 3), 3), ((NONE_LEFT, NONE_LEFT), NONE_LEFT), ((40, 40), 64),
    ],
)  # fmt: skip
def test_a_part_that_cannot_be_used_spoils_the_row_unless_it_is_only_empty(founds: tuple[int, int], found: int) -> None:
    part = padded(top_candidates(np.zeros((1, 64), np.float32), [K], scale=[1.0]))
    parts = [part._replace(found=np.array([n], np.int32)) for n in founds]
    assert merged_candidates(parts, [0, 64]).found[0] == found
