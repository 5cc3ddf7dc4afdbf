"""Predicted times from bandwidths, compute rates and link times that are made up here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paper_models import CACHE, even, facts, gpus, kinds, llama_8b, numbers, plan_of, table, total_bytes

from pyggml.engine.balance import DeviceFacts
from pyggml.engine.cuts import tp_cuts
from pyggml.engine.demand import ModelFacts, layer_demands, tensor_demands, whole_demand
from pyggml.engine.prediction import LinkTimes, Mode, Prediction, Work, advice, predict, seconds_at
from pyggml.engine.remedies import cut_demands
from pyggml.engine.slices import WHOLE
from pyggml.engine.weight_table import feed_forward_rows


def measured(devices: list[DeviceFacts], layer_s: float = 0.0) -> list[DeviceFacts]:
    return [replace(d, bandwidth=1e12, flops=1e14, layer_s=layer_s) for d in devices]


LINKS = LinkTimes(
    reduce=((4096 * 4, 5e-6), (4096 * 4 * 512, 100e-6)), copy=((4096 * 4, 8e-6), (4096 * 4 * 512, 60e-6))
)


def read_bytes(model: ModelFacts) -> int:
    """All weights but the embedding, of which a token reads one row."""
    return total_bytes(model) - WHOLE.n_bytes((128256, 4096), model.types["token_embd.weight"])


def test_a_token_on_one_device_reads_weights_and_cache() -> None:
    model = facts(llama_8b())
    demands = whole_demand(model, measured(gpus(1), layer_s=10e-6)[0])
    found = predict(model.hp, Mode.ONE, demands, CACHE, Work(n_past=1000))
    cache = 1000 * 32 * 2 * 8 * 128 * 2
    assert found.token_s == pytest.approx((read_bytes(model) + cache) / 1e12 + 32 * 10e-6)
    assert found.link_s == 0


def test_a_token_on_two_ranks_waits_for_the_slower_and_for_two_sums_a_layer() -> None:
    model = facts(llama_8b())
    slow, fast = replace(gpus(1)[0], bandwidth=1e12), replace(gpus(2)[1], bandwidth=4e12)
    plan = tp_cuts(model.hp, model.rows, model.types, (1, 1))
    demands = tensor_demands(model, plan, [slow, fast])
    found = predict(model.hp, Mode.TENSOR, demands, CACHE, Work(n_past=0), LINKS)
    assert found.link_s == pytest.approx(64 * 5e-6)
    assert found.token_s == pytest.approx(read_bytes(model) / 2 / 1e12 + 64 * 5e-6, rel=0.01)


def test_a_token_waits_for_every_sum_of_the_plan_by_its_width() -> None:
    model = facts(replace(llama_8b(), has_wide_qk_norm=True))
    links = LinkTimes(reduce=((8, 2e-6), (4096 * 4, 5e-6), (4096 * 4 * 512, 100e-6)))
    found = predict(model.hp, Mode.TENSOR, cut_demands(model, measured(gpus(2))), CACHE, Work(n_past=0), links)
    assert found.link_s == pytest.approx(64 * 5e-6 + 32 * 2e-6)
    wide = predict(model.hp, Mode.TENSOR, cut_demands(model, measured(gpus(2))), CACHE, Work(n_past=0), LINKS)
    assert wide.link_s == pytest.approx(96 * 5e-6)


def test_two_sums_a_layer_and_none_on_one_rank() -> None:
    hp = numbers(n_layer=5)
    assert plan_of(hp, even(2)).n_reduces == 10
    assert plan_of(hp, even(1)).n_reduces == plan_of(hp, (1, 0)).n_reduces == 0
    assert plan_of(hp, even(2)).sum_widths == (256,) * 10


def test_norms_over_all_heads_sum_a_pair_of_numbers_in_each_layer() -> None:
    assert plan_of(numbers(n_layer=5, has_wide_qk_norm=True), even(2)).sum_widths == (256,) * 10 + (2,) * 5


def test_experts_beside_a_dense_feed_forward_have_a_sum_of_their_own_and_shared_ones_none() -> None:
    hp = numbers(n_expert=6, n_expert_used=2, n_ff_shexp=64, is_dense=(True, False))
    rows = table(hp)
    assert tp_cuts(hp, rows, kinds(rows), even(2)).n_reduces == 4
    rows += feed_forward_rows(hp, 1)
    assert tp_cuts(hp, rows, kinds(rows), even(2)).n_reduces == 5


def test_a_token_in_a_layer_split_passes_the_devices_one_after_the_other() -> None:
    model = facts(llama_8b())
    demands = layer_demands(model, ((0, 10), (10, 20), (20, 32)), measured(gpus(3)))
    found = predict(model.hp, Mode.LAYER, demands, CACHE, Work(n_past=0), LINKS)
    assert found.token_s == pytest.approx(read_bytes(model) / 1e12 + 2 * 8e-6)


def test_a_prompt_is_computed_in_chunks() -> None:
    model = facts(llama_8b())
    hp, n = model.hp, 2048
    n_used = 32 * (4096 * 4096 * 2 + 2 * 1024 * 4096 + 3 * 14336 * 4096)
    operations = 2 * n_used * n + 4 * n * n / 2 * 4096 * 32
    one = predict(hp, Mode.ONE, whole_demand(model, measured(gpus(1))[0]), CACHE, Work(n_prompt=n))
    assert one.first_token_s == pytest.approx(operations / 1e14)
    tensor = predict(hp, Mode.TENSOR, cut_demands(model, measured(gpus(2))), CACHE, Work(n_prompt=n), LINKS)
    assert tensor.first_token_s == pytest.approx(operations / 2 / 1e14 + 4 * 64 * 100e-6)
    halves = layer_demands(model, ((0, 16), (16, 32)), measured(gpus(2)))
    split = predict(hp, Mode.LAYER, halves, CACHE, Work(n_prompt=n), LINKS)
    assert split.first_token_s == pytest.approx(operations / 1e14 * (4 + 1) / 8 + 60e-6)


def test_a_token_reads_only_the_experts_that_it_uses() -> None:
    model = facts(numbers(n_expert=8, n_expert_used=2, n_ff_exp=512))
    (demand,) = whole_demand(model, gpus(1)[0])
    expert_bytes = 2 * 3 * 8 * 512 * 256 // 32 * 34
    others = total_bytes(model) - expert_bytes - 320 * 256 // 32 * 34
    assert demand.read_bytes == others + expert_bytes // 4


def test_what_was_not_measured_is_not_predicted() -> None:
    model = facts(numbers())
    unknown = predict(model.hp, Mode.TENSOR, cut_demands(model, gpus(2)), CACHE, Work(), LINKS)
    assert (unknown.token_s, unknown.first_token_s) == (None, None)
    unlinked = predict(model.hp, Mode.TENSOR, cut_demands(model, measured(gpus(2))), CACHE, Work())
    assert (unlinked.token_s, unlinked.link_s) == (None, None)


def test_link_times_between_and_beyond_the_measured_sizes() -> None:
    points = ((1000, 5.0), (3000, 9.0), (4000, 20.0))
    assert [seconds_at(points, n) for n in (1, 1000, 2000, 4000, 8000)] == [5, 5, 7, 20, 40]
    assert seconds_at((), 10) is None


def test_advice_comes_from_the_numbers() -> None:
    one = Prediction(Mode.ONE, 1, 4e-3, 0.0, 0.1)
    tensor = Prediction(Mode.TENSOR, 2, 2.5e-3, 1e-3, 0.2)
    split = Prediction(Mode.LAYER, 2, 4.2e-3, 1e-5, 0.06)
    assert advice({"": one, "--tp 2": tensor, "--layer-split 2": split}) == (
        "--tp 2 is fastest for a token: 2.50 ms, 1.60 x one device; "
        "--layer-split 2 is fastest for the first token: 60.00 ms, 1.67 x one device"
    )
    assert advice({"": one, "--tp 2": Prediction(Mode.TENSOR, 2, None, None, None)}) == (
        "one device is fastest for a token: 4.00 ms; one device is fastest for the first token: 100 ms"
    )
    assert advice({"": one}) == "predicted for a token: 4.00 ms; predicted for the first token: 100 ms"
    slow = Prediction(Mode.ONE, 1, 1.793, 0.0, 401.3)
    assert advice({"": slow}) == "predicted for a token: 1.79 s; predicted for the first token: 401.30 s"
    assert advice({}) == "nothing was measured"
