"""What a plan decides without a device: masks, padded lengths, windows, groups of slots."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.engine.plan import fill_mask
from pyggml.engine.runner import padded_length, slot_group, window_length


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


def test_padding_is_at_most_an_eighth_above_64_and_never_above_the_limit() -> None:
    for n in range(1, 513):
        padded = padded_length(n, 512)
        assert n <= padded <= 512
        assert padded - n < max(8, n / 4)
        assert n < 64 or padded <= n * 1.25


def test_padding_needs_few_lengths() -> None:
    assert len({padded_length(n, 512) for n in range(1, 513)}) <= 32


@pytest.mark.parametrize(
    ("end", "n_tokens", "n_kv"),
    [(1, 1, 256), (256, 1, 256), (257, 1, 512), (9000, 1, 9216), (9000, 512, 10240), (600, 64, 768)],
)
def test_window_covers_the_end_in_steps(end: int, n_tokens: int, n_kv: int) -> None:
    assert window_length(end, n_tokens, 1 << 20) == n_kv


def test_window_never_exceeds_the_slot() -> None:
    assert window_length(900, 512, 1024) == 1024
    assert window_length(4000, 512, 4096) == 4096


@pytest.mark.parametrize("n_slots", [1, 3, 4, 6, 16])
def test_slot_groups_hold_their_slots_and_are_few(n_slots: int) -> None:
    groups = set()
    for first in range(n_slots):
        for last in range(first, n_slots):
            slot0, n_seq = slot_group(first, last, n_slots)
            assert slot0 <= first and last < slot0 + n_seq <= n_slots
            groups.add((slot0, n_seq))
    assert len(groups) <= 2 * n_slots
