"""How many prompt tokens a step takes: the choice from measured steps, and what a processor takes."""

from __future__ import annotations

import pytest

from pyggml.engine.batch_size import best_batch, prompt_seconds


@pytest.mark.parametrize(
    ("step_ms", "n_stages", "best"),
    [
        ({512: 45.0, 1024: 85.0, 2048: 165.0}, 1, 2048),
        ({512: 45.0, 1024: 89.9, 2048: 179.5}, 1, 512),  # no gain that is worth the memory
        ({512: 45.0, 1024: 85.0, 2048: 172.0}, 1, 1024),
        ({512: 45.0, 1024: 85.0, 2048: 165.0}, 2, 512),  # stages would wait for each other
        ({512: 45.0, 1024: 60.0}, 2, 1024),
        ({512: 45.0}, 4, 512),
    ],
)
def test_a_larger_batch_must_be_worth_it(step_ms: dict[int, float], n_stages: int, best: int) -> None:
    assert best_batch({n: ms / 1e3 for n, ms in step_ms.items()}, n_stages) == best


def test_stages_need_a_step_more_each_to_fill() -> None:
    assert prompt_seconds(0.1, 512, 1) == pytest.approx(16 * 0.1)
    assert prompt_seconds(0.1, 512, 2) == pytest.approx(17 * 0.05)
    assert prompt_seconds(0.1, 4096, 2) == pytest.approx(3 * 0.05)
