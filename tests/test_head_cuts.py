"""Attention heads dealt to ranks: whole groups, copies of key/value heads, blocks of attn_output."""

from __future__ import annotations

import pytest
from paper_models import Q4_K, even, numbers, plan_of

from pyggml.engine.cuts import TensorPlan
from pyggml.engine.head_cuts import kv_heads_of


def heads_of(plan: TensorPlan) -> list[tuple[int, int]]:
    return [(rank.n_head, rank.n_head_kv) for rank in plan.ranks]


@pytest.mark.parametrize(
    "n_head, n_head_kv, n_ranks, right",
    [
        (32, 8, 2, [(16, 4), (16, 4)]),
        (32, 8, 3, [(12, 3), (12, 3), (8, 2)]),
        (32, 8, 16, [(2, 1)] * 16),
        (9, 3, 2, [(6, 2), (3, 1)]),
        (6, 2, 4, [(2, 1), (1, 1), (2, 1), (1, 1)]),
        (4, 1, 2, [(2, 1), (2, 1)]),
        (5, 5, 2, [(3, 3), (2, 2)]),
        (5, 1, 2, [(3, 1), (2, 1)]),
        (4, 2, 3, [(2, 1), (1, 1), (1, 1)]),
        (32, 2, 3, [(11, 1), (10, 2), (11, 1)]),
    ],
)
def test_heads_of_each_rank(n_head: int, n_head_kv: int, n_ranks: int, right: list[tuple[int, int]]) -> None:
    assert heads_of(plan_of(numbers(n_head=n_head, n_head_kv=n_head_kv), even(n_ranks))) == right


def test_a_run_over_two_groups_repeats_key_value_heads_until_it_is_regular() -> None:
    assert kv_heads_of((0, 5), group=3) == (0, 0, 0, 1, 1)
    assert kv_heads_of((2, 4), group=3) == (0, 1)
    assert kv_heads_of((3, 9), group=3) == (1, 2)


def test_replicated_key_value_heads_are_told() -> None:
    notes = plan_of(numbers(n_head=8, n_head_kv=2), even(4)).notes
    assert notes == ("n_head_kv = 2: KV heads are copied, 4 in all, 1 on the fullest rank",)


def test_heads_narrower_than_a_block_are_cut_several_at_a_time() -> None:
    # Heads of 64 in blocks of 256: four query heads a cut, and 6 groups of 2 heads in units of 2 groups.
    plan = plan_of(numbers(n_head=12, n_head_kv=6, n_ff=1024), even(2), attn_output=Q4_K)
    assert heads_of(plan) == [(8, 4), (4, 2)]


def test_ranks_beyond_the_units_of_heads_hold_none_and_it_is_told() -> None:
    plan = plan_of(numbers(n_head=4, n_head_kv=2, n_ff=1024), even(3), attn_output=Q4_K)
    assert sorted(heads_of(plan)) == [(0, 0), (0, 0), (4, 2)]
    assert plan.notes == ("ranks without attention heads: 1, 2",)
    assert plan.slice_of("blk.0.attn_q.weight", 1) is None
    assert plan.slice_of("blk.0.attn_output.weight", 2) is None


def test_heads_follow_the_shares() -> None:
    assert heads_of(plan_of(numbers(n_head=32, n_head_kv=8), (3, 1))) == [(24, 6), (8, 2)]
