"""How many prompt tokens a step may have while answers run."""

from __future__ import annotations

import pytest

from pyggml.engine import ConfigError
from pyggml.engine.pace import Pace, check_gap


def test_before_anything_was_measured_a_step_is_short() -> None:
    assert Pace(512).chunk() == 128
    assert Pace(64).chunk() == 64


@pytest.mark.parametrize(
    ("tok_per_s", "chunk"), [(10_000, 512), (1_000, 192), (700, 128), (400, 64), (100, 32), (3, 32)]
)
def test_a_step_takes_what_a_fifth_of_a_second_allows_and_at_least_32(tok_per_s: float, chunk: int) -> None:
    pace = Pace(512, 200)
    pace.note_prefill(128, 128 / tok_per_s)
    pace.note_decode(0.01)
    assert pace.chunk() == chunk


@pytest.mark.parametrize(("tok_per_s", "chunk"), [(10_000, 512), (100, 192), (20, 32)])
def test_a_step_that_nobody_waits_for_takes_ten_times_as_long(tok_per_s: float, chunk: int) -> None:
    pace = Pace(512, 200)
    assert pace.solo_chunk == 512
    pace.note_prefill(128, 128 / tok_per_s)
    assert pace.solo_chunk == chunk


def test_the_first_step_is_short_where_a_long_one_is_possible() -> None:
    pace = Pace(32768, 200, 4096)
    assert pace.solo_chunk == 4096
    pace.note_prefill(4096, 0.4)
    assert pace.solo_chunk == 16384
    assert Pace(512, 200, 4096).solo_chunk == 512


def test_a_step_of_few_tokens_says_nothing_about_speed() -> None:
    pace = Pace(512)
    pace.note_prefill(100, 0.1)
    pace.note_prefill(2, 0.2)
    pace.note_decode(0.01)
    assert pace.chunk() == 192


def test_after_a_step_of_a_prompt_answers_have_their_turn_or_the_rest_of_the_time_is_used() -> None:
    pace = Pace(512, 200)
    pace.note_prefill(100, 0.1)
    assert (pace.chunk(), pace.chunk(goes_on=True)) == (0, 96)  # of 1000 a second in 0.1 s
    pace.note_prefill(80, 0.08)
    assert (pace.chunk(), pace.chunk(goes_on=True)) == (0, 0)
    pace.note_decode(0.01)
    assert (pace.chunk(), pace.chunk(goes_on=True)) == (192, 192)


def test_padding_is_free_up_to_what_a_decode_step_costs() -> None:
    pace = Pace(512)
    assert pace.n_free == 0
    pace.note_prefill(500, 0.05)
    pace.note_decode(0.004)
    assert pace.n_free == 40


@pytest.mark.parametrize("gap", [0, -5.0, float("nan"), "long", True])
def test_gaps_that_make_no_sense_are_refused(gap: object) -> None:
    with pytest.raises(ConfigError, match="max-gap"):
        check_gap(gap)  # type: ignore[arg-type]
