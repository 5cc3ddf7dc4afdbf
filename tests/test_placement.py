"""Memory on paper: bytes of each rank, the context that fits, what lies where in words."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from paper_models import CACHE, GIB, facts, gpus, llama_8b, numbers, total_bytes

from pyggml.engine.cuts import tp_cuts
from pyggml.engine.demand import compute_estimate, layer_demands, layer_sizes, tensor_demands, whole_demand
from pyggml.engine.errors import ConfigError
from pyggml.engine.fit import choose_group_ctx, fit, largest_ctx, placements
from pyggml.engine.kv_cache import cache_bytes
from pyggml.engine.placement import Placement, Placements
from pyggml.engine.remedies import cut_demands

# Bytes of each rank


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_cut_bytes_of_all_ranks_and_one_copy_of_the_rest_are_the_file(n: int) -> None:
    model = facts(llama_8b())
    demands = cut_demands(model, gpus(n))
    assert sum(d.cut_bytes for d in demands) + demands[0].whole_bytes == total_bytes(model)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_rank_holds_about_its_part_of_what_is_cut_and_all_the_rest(n: int) -> None:
    model = facts(llama_8b())
    whole = total_bytes(model)
    embedding = 128256 * 4096 // 32 * 34
    for demand in cut_demands(model, gpus(n)):
        assert demand.weights_bytes == pytest.approx((whole - embedding) / n + embedding, rel=0.01)


def test_layers_of_all_devices_are_the_file() -> None:
    model = facts(llama_8b())
    spans = ((0, 12), (12, 22), (22, 32))
    demands = layer_demands(model, spans, gpus(3))
    assert sum(d.weights_bytes for d in demands) == total_bytes(model)
    sizes, first, last = layer_sizes(model)
    assert demands[0].weights_bytes == first + sum(sizes[:12])
    assert demands[2].weights_bytes == last + sum(sizes[22:])


def test_devices_without_layers_or_share_have_no_demand() -> None:
    model = facts(llama_8b())
    assert [d.device.name for d in layer_demands(model, ((0, 0), (0, 32)), gpus(2))] == ["cuda:1"]
    plan = tp_cuts(model.hp, model.rows, model.types, (1, 0))
    assert [d.device.name for d in tensor_demands(model, plan, gpus(2))] == ["cuda:0"]


def test_a_rank_caches_its_own_key_value_heads_with_copies() -> None:
    hp = numbers(n_head=8, n_head_kv=2)
    whole = cache_bytes(hp, 4, 1024, "f16", "f16")
    for n, parts in ((2, 2), (4, 2), (8, 2)):
        demands = cut_demands(facts(hp), gpus(n))
        assert [d.cache_bytes(hp, CACHE, 1024) for d in demands] == [whole // parts] * n


def test_a_device_of_a_layer_split_caches_its_own_layers() -> None:
    model = facts(llama_8b())
    (one,) = whole_demand(model, gpus(1)[0])
    a, b = layer_demands(model, ((0, 20), (20, 32)), gpus(2))
    assert one.cache_bytes(model.hp, CACHE, 4096) == cache_bytes(model.hp, 4, 4096, "f16", "f16")
    assert a.cache_bytes(model.hp, CACHE, 4096) * 12 == b.cache_bytes(model.hp, CACHE, 4096) * 20


@pytest.mark.parametrize(
    "n_ctx, n_batch, has_flash_attention, measured_mib",
    [(1024, 128, True, 3.35), (8192, 512, True, 20.4), (8192, 512, False, 160.3)],
)
def test_results_are_estimated_near_what_a_small_model_took(
    n_ctx: int, n_batch: int, has_flash_attention: bool, measured_mib: float
) -> None:
    hp = numbers(n_layer=30, n_embd=576, n_vocab=49152, n_head=9, n_head_kv=3, n_ff=1536)
    found = compute_estimate(
        hp, n_batch=n_batch, n_ctx=n_ctx, n_slots=2, has_flash_attention=has_flash_attention
    )
    assert found / 2**20 == pytest.approx(measured_mib, rel=0.1)


def test_what_narrow_experts_bring_out_lies_beside_what_it_is_weighted_to() -> None:
    """As cards were seen to hold it: 512 tokens of qwen3-30b-a3b on one card, and its larger half on one of two."""
    found = []
    for n_ff_exp in (768, 512):
        hp = numbers(
            n_layer=4, n_embd=2048, n_vocab=151936, n_head=32, n_head_kv=4, n_ff=6144,
            n_expert=128, n_expert_used=8, n_ff_exp=n_ff_exp,
        )  # fmt: skip
        found.append(compute_estimate(hp, n_batch=512, n_ctx=0, n_slots=2) / 2**20)
    assert found == [pytest.approx(85, rel=0.1), pytest.approx(102, rel=0.1)]


# The context that fits


def test_the_largest_context_fills_the_tightest_device_and_one_window_more_does_not_fit() -> None:
    model = facts(llama_8b())
    devices = [gpus(1, 30)[0], replace(gpus(2)[1], free_bytes=12 * GIB)]
    split = layer_demands(model, ((0, 20), (20, 32)), devices)
    for demands in (whole_demand(model, devices[1]), cut_demands(model, devices), split):
        most = largest_ctx(model, demands, CACHE)
        assert most % 256 == 0 and 0 < most < model.hp.n_ctx_train
        assert fit(model, demands, CACHE, most).is_fitting
        assert not fit(model, demands, CACHE, most + 256).is_fitting
        assert fit(model, demands, CACHE, most).tightest == "cuda:1"


def test_no_context_is_larger_than_the_models_own() -> None:
    model = facts(numbers(n_ctx_train=1000))
    assert largest_ctx(model, whole_demand(model, gpus(1)[0]), CACHE) == 1000


def test_no_context_fits_where_the_weights_do_not() -> None:
    model = facts(llama_8b())
    assert largest_ctx(model, whole_demand(model, gpus(1, 8)[0]), CACHE) == 0


def test_ranks_on_one_device_share_its_memory() -> None:
    model = facts(llama_8b())
    twice = [gpus(1, 20)[0]] * 2
    found = fit(model, cut_demands(model, twice), CACHE, 4096)
    apart = fit(model, cut_demands(model, gpus(2, 20)), CACHE, 4096)
    assert found.needed == {"cuda:0": sum(apart.needed.values())}


def test_a_context_of_our_choice_leaves_a_fifth_of_what_the_weights_leave() -> None:
    model = facts(llama_8b())
    demands = whole_demand(model, gpus(1, 12)[0])
    left = 12 * GIB - demands[0].weights_bytes
    chosen = choose_group_ctx(model, demands, CACHE, None)
    chosen_bytes, next_bytes = (demands[0].cache_bytes(model.hp, CACHE, n) for n in (chosen, chosen + 256))
    assert chosen_bytes <= 0.8 * left < next_bytes


def test_a_context_that_was_asked_for_is_taken_or_refused_with_the_numbers() -> None:
    model = facts(llama_8b())
    demands = cut_demands(model, gpus(2, 8))
    assert choose_group_ctx(model, demands, CACHE, 8000) == 8000
    needed = fit(model, demands, CACHE, 100000).needed["cuda:0"]
    most = largest_ctx(model, demands, CACHE)
    with pytest.raises(ConfigError) as refused:
        choose_group_ctx(model, demands, CACHE, 100000)
    assert str(refused.value) == (
        f"ctx = 100000 with 4 slots needs {needed} bytes on cuda:0; {8 * GIB} are free; --ctx {most} fits"
    )
    with pytest.raises(ConfigError, match=r"^ctx = 63; at least 64 is needed$"):
        choose_group_ctx(model, demands, CACHE, 63)


def test_tensor_parallelism_holds_a_longer_context_and_copies_of_heads_shorten_it() -> None:
    hp = replace(llama_8b(), n_head_kv=2, n_ctx_train=10**7)
    model = facts(hp)
    one, two, four = (
        largest_ctx(
            model, cut_demands(model, gpus(n, 20)) if n > 1 else whole_demand(model, gpus(1, 20)[0]), CACHE
        )
        for n in (1, 2, 4)
    )
    assert two > 2 * one
    assert two < four < 1.3 * two


# What lies where, in words


def test_several_placements_are_a_table() -> None:
    hp = numbers(n_layer=8, n_embd=4096, n_vocab=32000, n_head=32, n_head_kv=8, head_dim=128, n_ff=11008)
    model = facts(hp)
    found = placements(model, cut_demands(model, gpus(2), 64 * 2**20), CACHE, 4096)
    assert str(found) == (
        "4 x 4096 tokens on 2 ranks\n"
        "device  layers  heads  KV heads  weights  replicated  cache    results  total\n"
        "cuda:0  0-7     0-15   4         918 MiB  133 MiB     256 MiB  64 MiB   1238 MiB\n"
        "cuda:1  0-7     16-31  4         918 MiB  133 MiB     256 MiB  64 MiB   1238 MiB"
    )


def test_one_placement_is_one_line() -> None:
    one = Placement("cpu", "a processor", 4096, 4, 2**20, 3 * 2**20, 2**21, 2**22)
    assert str(Placements([one])) == str(one)
    assert str(one) == (
        "cpu (a processor): weights 1 MiB + 3 MiB mapped from the file, cache 2 MiB (4 x 4096 tokens), "
        "results 4 MiB"
    )


@pytest.mark.parametrize(
    ("allocated", "mapped", "words"),
    [(2**20, 0, "weights 1 MiB, "), (0, 2**21, "weights 2 MiB mapped from the file, "), (0, 0, "weights 0 MiB, ")],
)
def test_weights_of_one_kind_are_one_number(allocated: int, mapped: int, words: str) -> None:
    assert words in str(Placement("cpu", "a processor", 4096, 4, allocated, mapped, 2**21, 2**22))


def test_placements_as_json_have_the_sums() -> None:
    model = facts(numbers())
    found = placements(model, cut_demands(model, gpus(2)), CACHE, 1024).to_dict()
    assert json.loads(json.dumps(found))["ranks"][1]["heads"] == [2, 4]
    assert found["weights_bytes"] == sum(rank["weights_bytes"] for rank in found["ranks"])
    assert found["n_bytes"] == found["weights_bytes"] + found["cache_bytes"] + found["compute_bytes"]
