"""Tensor-parallel cuts on paper: every weight whole again from its slices, cuts on blocks, heads regular."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest
from paper_models import (
    F16,
    F32,
    Q4_0,
    Q4_K,
    Q6_K,
    Q8_0,
    Kind,
    cut_rows,
    even,
    kinds,
    llama_8b,
    numbers,
    plan_of,
    table,
)  # fmt: skip

from pyggml.engine.cuts import TensorPlan, tp_cuts, valid_degrees
from pyggml.engine.errors import ConfigError
from pyggml.engine.hparams import HParams
from pyggml.engine.slices import WHOLE, Axis, Slice
from pyggml.engine.weight_table import Cut, Weight


def widths(plan: TensorPlan, name: str = "blk.0.ffn") -> list[int]:
    return [stop - start for start, stop in plan.ffn[name]]


# Properties over many shapes


def random_case(seed: int) -> tuple[HParams, list[Weight], dict[str, Kind], tuple[float, ...], str]:
    draw = random.Random(seed)
    head_dim, n_head_kv, group = draw.choice((16, 32, 64, 128)), draw.randint(1, 9), draw.randint(1, 8)
    n_expert = draw.choice((0, 0, 0, 5))
    n_ff = draw.choice((32 * draw.randint(1, 40), 256 * draw.randint(1, 9), draw.randint(9, 300)))
    hp = numbers(
        n_layer=1, n_embd=draw.choice((48, 256)), n_vocab=draw.randint(40, 999),
        n_head=n_head_kv * group, n_head_kv=n_head_kv, head_dim=head_dim, n_ff=n_ff,
        n_expert=n_expert, n_expert_used=min(2, n_expert),
    )  # fmt: skip
    rows = table(hp)
    types = kinds(rows, biases=draw.random() < 0.5)
    for row in rows:
        fits = [kind for kind in (F32, F16, Q8_0, Q4_0, Q4_K, Q6_K) if row.shape[-1] % kind.block_size == 0]
        if len(row.shape) > 1 and not row.name.endswith(".bias"):
            types[row.name] = draw.choice(fits)
    shares = [draw.choice((1.0, 1.0, 1.0, 2.5, 7.0)) for _ in range(draw.randint(2, 16))]
    if draw.random() < 0.3:
        shares[draw.randrange(len(shares))] = 0.0
    return hp, rows, types, tuple(shares), draw.choice(("inside", "experts")) if n_expert else "inside"


CASES = [random_case(seed) for seed in range(300)]


def planned() -> list[tuple[TensorPlan, HParams, list[Weight], dict[str, Kind]]]:
    plans = []
    for hp, rows, types, shares, expert_split in CASES:
        try:
            plans.append((tp_cuts(hp, rows, types, shares, expert_split=expert_split), hp, rows, types))
        except ConfigError as error:
            assert "would hold no heads" in str(error)
    return plans


PLANS = planned()


def test_the_random_shapes_are_mostly_possible_and_of_every_number_of_ranks() -> None:
    assert len(PLANS) > 150
    assert {len(plan.ranks) for plan, *_ in PLANS} == set(range(2, 17))
    assert any(sum(rank.n_head_kv for rank in plan.ranks) > hp.n_head_kv for plan, hp, *_ in PLANS)


def test_slices_put_together_are_the_bytes_of_the_weight() -> None:
    random_bytes = np.random.default_rng(1)
    for plan, hp, rows, types in PLANS:
        for row in rows:
            if row.name not in types:
                continue
            kind = types[row.name]
            n_bytes = math.prod(row.shape) // kind.block_size * kind.type_size
            data = random_bytes.integers(0, 256, n_bytes, np.uint8)
            assert_whole(plan, hp, row, kind, data)


def assert_whole(plan: TensorPlan, hp: HParams, row: Weight, kind: Kind, data: np.ndarray) -> None:
    """The ranks' bytes, laid side by side along the cut, are the weight's."""
    slices = [plan.slice_of(row.name, rank) for rank in range(len(plan.ranks))]
    parts = []
    for part in slices:
        if part is None:
            continue
        taken = part.of(data, row.shape, kind)
        shape = part.shape(row.shape)
        assert taken.nbytes == part.n_bytes(row.shape, kind)
        if part is WHOLE:
            np.testing.assert_array_equal(taken, data)
            continue
        parts.append(taken.reshape(*shape[:-1], shape[-1] // kind.block_size * kind.type_size))
        dim = part.dim
    if not parts:
        return
    joined = np.concatenate(parts, axis=dim)
    if row.cut is Cut.HEADS_KV:
        held = [kv for rank in plan.ranks for kv in rank.kv_heads]
        each = joined.shape[0] // len(held)
        joined = np.concatenate([joined[held.index(kv) * each :][:each] for kv in range(hp.n_head_kv)])
    np.testing.assert_array_equal(joined.reshape(-1), data)


def test_cuts_fall_on_blocks_of_every_weight() -> None:
    for plan, _, rows, types in PLANS:
        for row in cut_rows(rows, Cut.IN, Cut.HEADS_IN):
            for part in plan.slices[row.name]:
                if part is not None and part.axis is Axis.IN:
                    assert all(at % types[row.name].block_size == 0 for span in part.spans for at in span)


def test_every_local_query_head_meets_its_own_key_value_head() -> None:
    for plan, hp, *_ in PLANS:
        for rank in plan.ranks:
            if rank.n_head == 0:
                assert rank.kv_heads == ()
                continue
            each, rest = divmod(rank.n_head, rank.n_head_kv)
            assert rest == 0
            wanted = [head // (hp.n_head // hp.n_head_kv) for head in range(*rank.heads)]
            assert [rank.kv_heads[h // each] for h in range(rank.n_head)] == wanted


def test_gate_and_up_have_the_rows_that_down_has_as_columns() -> None:
    for plan, _, rows, _ in PLANS:
        for row in cut_rows(rows, Cut.IN):
            for rank, down in enumerate(plan.slices[row.name]):
                for name in ("gate", "up"):
                    part = plan.slice_of(row.name.replace("down", name), rank)
                    assert (part.spans if part else ()) == (down.spans if down else ())


def test_ranks_with_share_0_hold_no_weight() -> None:
    for plan, *_ in PLANS:
        for r, rank in enumerate(plan.ranks):
            if rank.share == 0:
                assert all(slices[r] is None for slices in plan.slices.values())
                assert plan.cut_bytes[r] == plan.whole_bytes[r] == 0


def test_biases_that_follow_a_sum_are_added_once() -> None:
    seen = 0
    for plan, *_ in PLANS:
        for name in ("blk.0.attn_output.bias", "blk.0.ffn_down.bias"):
            if name in plan.slices:
                holders = [rank for rank, part in enumerate(plan.slices[name]) if part is not None]
                assert len(holders) == 1
                assert plan.slice_of(name.replace("bias", "weight"), holders[0]) is not None
                seen += 1
    assert seen > 50


# Feed-forward and vocabulary


@pytest.mark.parametrize(
    "n_ff, kind, n_ranks, right",
    [
        (768, Q4_K, 2, [512, 256]),
        (96, Q8_0, 2, [64, 32]),
        (2304, Q4_K, 2, [1280, 1024]),
        (2304, Q4_K, 4, [768, 512, 512, 512]),
        (14336, F16, 3, [4800, 4768, 4768]),
        (100, F16, 3, [34, 33, 33]),
    ],
)
def test_feed_forward_columns_of_each_rank(n_ff: int, kind: Kind, n_ranks: int, right: list[int]) -> None:
    assert widths(plan_of(numbers(n_ff=n_ff, n_head=16, n_head_kv=16), even(n_ranks), ffn_down=kind)) == right


def test_each_layer_is_cut_by_its_own_type() -> None:
    hp = numbers(n_ff=768)
    rows = table(hp)
    types = kinds(rows, Q8_0) | {"blk.1.ffn_down.weight": Q6_K}
    plan = tp_cuts(hp, rows, types, even(2))
    assert widths(plan, "blk.0.ffn") == [384, 384]
    assert widths(plan, "blk.1.ffn") == [512, 256]


@pytest.mark.parametrize("n_vocab", [32001, 32008, 320, 5])
def test_vocabulary_rows_add_up_to_the_vocabulary(n_vocab: int) -> None:
    plan = plan_of(numbers(n_vocab=n_vocab), even(2))
    head = [plan.slice_of("output.weight", rank) for rank in (0, 1)]
    assert sum(part.shape((n_vocab, 256))[0] for part in head if part) == n_vocab
    assert plan.ranks[0].vocab[1] == plan.ranks[1].vocab[0]
    assert plan.slices["token_embd.weight"] == (WHOLE, WHOLE)


# Experts

MOE = {"n_expert": 6, "n_expert_used": 2, "n_ff": 768}


def test_experts_are_cut_inside() -> None:
    plan = plan_of(numbers(**MOE), even(2), ffn_down=Q4_K)
    assert plan.slice_of("blk.0.ffn_down_exps.weight", 1) == Slice(Axis.IN, 2, ((512, 768),))
    assert plan.slice_of("blk.0.ffn_up_exps.weight", 0) == Slice(Axis.OUT, 1, ((0, 512),))
    assert plan.slices["blk.0.ffn_gate_inp.weight"] == (WHOLE, WHOLE)


def test_experts_are_dealt_whole() -> None:
    plan = plan_of(numbers(**MOE), even(4), expert_split="experts", ffn_down=Q4_K)
    assert [rank.experts for rank in plan.ranks] == [(0, 2), (2, 4), (4, 5), (5, 6)]
    for name in ("gate", "up", "down"):
        assert plan.slice_of(f"blk.0.ffn_{name}_exps.weight", 2) == Slice(Axis.EXPERTS, 0, ((4, 5),))


@pytest.mark.parametrize(
    ("n_ff", "kind", "shares", "shown"),
    [
        (768, Q4_K, (1.0, 1.0), "768 columns are cut 512,256, in whole blocks of 256"),
        (768, Q4_K, even(4), "768 columns are cut 256,256,256,0, in whole blocks of 256"),
        (96, Q8_0, (1.0, 0.0, 1.0), "96 columns are cut 64,0,32, in whole blocks of 32"),
        (768, Q4_K, even(3), ""),
        (768, Q4_K, (2.0, 1.0), ""),
        (768, Q4_K, (1.0, 0.0), ""),
        (1408, Q8_0, even(4), ""),
        (97, F16, even(16), ""),
    ],
)
def test_experts_of_too_few_blocks_to_be_cut_evenly_are_told_with_their_widths(
    n_ff: int, kind: Kind, shares: tuple[float, ...], shown: str
) -> None:
    hp = numbers(n_expert=6, n_expert_used=2, n_ff=n_ff, n_head=16, n_head_kv=16)
    told = (f"each expert's {shown}; compare --expert-split experts",) if shown else ()
    assert plan_of(hp, shares, ffn_down=kind).notes == told
    assert plan_of(hp, shares, expert_split="experts", ffn_down=kind).notes == ()
    assert plan_of(numbers(n_ff=n_ff, n_head=16, n_head_kv=16), shares, ffn_down=kind).notes == ()


def test_a_wrong_expert_split_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expert-split = 'tokens'; inside and experts are supported"):
        plan_of(numbers(**MOE), even(2), expert_split="tokens")
    with pytest.raises(ConfigError, match=r"the model has no experts"):
        plan_of(numbers(), even(2), expert_split="experts")


def test_gate_and_up_in_one_tensor_are_cut_segment_by_segment() -> None:
    hp = numbers()
    rows = [row for row in table(hp) if "ffn_gate." not in row.name and "ffn_up." not in row.name]
    rows += [Weight("blk.0.ffn_gate_up.weight", (2 * hp.n_ff, hp.n_embd), Cut.OUT)]
    plan = tp_cuts(hp, rows, kinds(rows), even(2))
    assert plan.slice_of("blk.0.ffn_gate_up.weight", 1) == Slice(Axis.OUT, 0, ((256, 512), (768, 1024)))


# Refusals and degrees


def test_sixteen_ranks_are_planned_and_seventeen_refused_with_the_limit() -> None:
    hp = llama_8b()
    assert len(plan_of(hp, even(16), Q4_K).ranks) == 16
    with pytest.raises(ConfigError, match=r"^tp = 17; 1 to 16 devices are supported$"):
        plan_of(hp, even(17), Q4_K)


@pytest.mark.parametrize(
    "shares, message",
    [
        ((0, 0), "tensor-split = 0,0 gives no device anything; one share must be above 0"),
        ((1, -1), "tensor-split = 1,-1; shares must be 0 or more"),
        ((1, math.nan), "tensor-split = 1,nan; shares must be 0 or more"),
        ((100, 1), "tensor-split = 100,1: rank 1 would hold no heads and no feed-forward columns; "
                   "a larger share works, and 0 leaves the rank out"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(numbers(n_head=4, n_head_kv=4, n_ff=512), shares, Q4_K)
    assert str(refused.value) == message


def test_a_degree_that_leaves_a_rank_idle_is_refused_with_those_that_work() -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(numbers(n_head=4, n_head_kv=2, n_ff=512), even(8), Q4_K)
    assert str(refused.value) == (
        "tp = 8 for llama: rank 2 would hold no heads and no feed-forward columns; "
        "this file works with tp 1, 2, or with --layer-split 2"
    )


@pytest.mark.parametrize("shares", [(1, 0), (0, 1)])
def test_one_share_alone_is_the_whole_model(shares: tuple[float, ...]) -> None:
    plan = plan_of(numbers(), shares)
    alone = shares.index(1)
    for row in table(numbers()):
        if row.name in plan.slices:
            part = plan.slice_of(row.name, alone)
            assert part is not None and part.shape(row.shape) == row.shape


def test_degrees_of_a_real_shape() -> None:
    hp = llama_8b()
    rows = table(hp)
    degrees = valid_degrees(hp, rows, kinds(rows, Q4_K))
    assert [d.n_ranks for d in degrees if not d.obstacle] == list(range(1, 17))
    fullest = {d.n_ranks: round(d.fullest, 2) for d in degrees}
    assert (fullest[1], fullest[2], fullest[4], fullest[7]) == (1.0, 1.0, 1.0, 1.13)
    assert degrees[8].notes == ("n_head_kv = 8: KV heads are copied, 9 in all, 1 on the fullest rank",)


def test_degrees_of_a_small_file_name_the_obstacle() -> None:
    hp = numbers(n_head=4, n_head_kv=2, n_ff=512)
    rows = table(hp)
    degrees = valid_degrees(hp, rows, kinds(rows, Q4_K))
    assert degrees[3].obstacle == "rank 2 would hold no heads and no feed-forward columns"


SHAPES = {
    "llama-8b": (32, 8, 128, 14336), "llama-70b": (64, 8, 128, 28672), "qwen2-7b": (28, 4, 128, 18944),
    "qwen3-8b": (32, 8, 128, 12288), "qwen3-32b": (64, 8, 128, 25600),
}  # fmt: skip


@pytest.mark.parametrize("kind", [F16, Q8_0, Q4_K], ids=["F16", "Q8_0", "Q4_K"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_fullest_rank_has_no_more_than_ggmls_own_cut_would_give_it(shape: str, kind: Kind) -> None:
    """ggml's meta backend rounds each boundary down to lcm(block, 128) columns; its last rank takes the rest."""
    n_head, n_head_kv, head_dim, n_ff = SHAPES[shape]
    hp = numbers(n_head=n_head, n_head_kv=n_head_kv, head_dim=head_dim, n_ff=n_ff, n_embd=4096, n_vocab=32000)
    rows = table(hp)
    for n in range(2, 17):
        plan = tp_cuts(hp, rows, kinds(rows, kind), even(n))
        unit = math.lcm(kind.block_size, 128)
        bounds = [*(n_ff * i // n // unit * unit for i in range(n)), n_ff]
        theirs = max(stop - start for start, stop in pairwise(bounds))
        assert max(stop - start for start, stop in plan.ffn["blk.0.ffn"]) <= theirs
        group = math.lcm(n_head // n_head_kv * head_dim, kind.block_size) // head_dim
        heads = [*(n_head * i // n // group * group for i in range(n)), n_head]
        assert max(rank.n_head for rank in plan.ranks) <= max(stop - start for start, stop in pairwise(heads))
