"""What a plan decides without a device: masks, padded lengths, windows, groups of slots."""

from __future__ import annotations

import numpy as np
import pytest
from paper_models import numbers

from pyggml.engine.hparams import Temperature
from pyggml.engine.plan import fill_mask, temperatures
from pyggml.engine.rounding import group_size, padded_length, slot_group, window_length


def right_mask(n_tokens: int, n_kv: int, start: int, n: int, window: int) -> np.ndarray:
    """The mask by its definition, one entry at a time."""
    mask = np.full((n_tokens, n_kv), -np.inf, np.float16)
    for i in range(n_tokens):
        for j in range(n_kv):
            position = start + i
            seen = j <= position and (not window or j > position - window) if i < n else j == 0
            mask[i, j] = 0 if seen else -np.inf
    return mask


@pytest.mark.parametrize("window", [0, 1, 4, 100])
@pytest.mark.parametrize(("start", "n"), [(0, 8), (0, 5), (7, 8), (20, 3), (31, 1), (5, 0)])
def test_mask_is_what_its_definition_says(start: int, n: int, window: int) -> None:
    mask = np.zeros((8, 40), np.float16)
    fill_mask(mask, start, n, window)
    assert np.array_equal(mask, right_mask(8, 40, start, n, window))


@pytest.mark.parametrize("window", [1, 4, 7, 100])
@pytest.mark.parametrize(("start", "n"), [(0, 8), (0, 5), (7, 8), (20, 3), (31, 1), (28, 1), (5, 0)])
def test_chunked_mask_shows_the_own_stretch_only(start: int, n: int, window: int) -> None:
    mask = np.zeros((8, 40), np.float16)
    fill_mask(mask, start, n, window, is_chunked=True)
    positions, places = start + np.arange(n)[:, None], np.arange(40)[None]
    seen = (places <= positions) & (places // window == positions // window)
    assert np.array_equal(mask[:n] == 0, seen)
    assert np.array_equal(mask[n:], right_mask(8, 40, start, n, 0)[n:])


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_temperature_grows_with_the_logarithm_of_whole_lengths(offset: float) -> None:
    hp = numbers(temperature=Temperature(0.1, 10.0, offset))
    found = temperatures(hp, np.array([[0, 8, 9, 10], [19, 20, 99, 100]]))
    steps = np.array([[0, 0, 0, 1], [1, 2, 9, 10]]) if not offset else np.array([[0, 0, 1, 1], [2, 2, 10, 10]])
    assert np.allclose(found, 1 + 0.1 * np.log(1 + steps))


def test_padding_is_at_most_an_eighth_above_64_and_never_above_the_limit() -> None:
    for n in range(1, 513):
        padded = padded_length(n, 512)
        assert n <= padded <= 512
        assert padded - n < max(8, n / 4)
        assert n < 64 or padded <= n * 1.25


def test_padding_needs_few_lengths() -> None:
    assert len({padded_length(n, 512) for n in range(1, 513)}) <= 32


@pytest.mark.parametrize(
    ("end", "n_tokens", "can_move", "n_kv"),
    [
        (1, 1, True, 256), (256, 1, True, 256), (257, 1, True, 512), (9000, 512, True, 9216),
        (9000, 1, False, 9216), (9000, 512, False, 10240), (600, 64, False, 768),
    ],
)  # fmt: skip
def test_window_covers_the_end_in_steps(end: int, n_tokens: int, can_move: bool, n_kv: int) -> None:
    assert window_length(end, n_tokens, 1 << 20, can_move=can_move) == n_kv


@pytest.mark.parametrize("can_move", [True, False])
def test_window_never_exceeds_the_slot(can_move: bool) -> None:
    assert window_length(900, 512, 1024, can_move=can_move) == 1024
    assert window_length(4000, 512, 4096, can_move=can_move) == 4096


@pytest.mark.parametrize("n_slots", [1, 3, 4, 6, 16])
@pytest.mark.parametrize("can_move", [True, False])
def test_slot_groups_hold_their_slots_and_need_few_plans(n_slots: int, can_move: bool) -> None:
    plans = set()
    for first in range(n_slots):
        for last in range(first, n_slots):
            slot0, n_seq = slot_group(first, last, n_slots, can_move=can_move)
            assert 0 <= slot0 <= first and last < slot0 + n_seq <= n_slots
            plans.add(n_seq if can_move else (slot0, n_seq))
    assert len(plans) <= (2 * n_slots.bit_length() if can_move else 2 * n_slots)


def test_group_sizes_waste_less_than_a_half() -> None:
    assert [group_size(n) for n in (1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 25)] == [1, 2, 3, 4, 6, 6, 8, 12, 16, 24, 32]
    assert all(n <= group_size(n) <= 1.5 * n for n in range(1, 200))
