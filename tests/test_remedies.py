"""What would fit: options for a model that does not fit where it was asked to lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
from paper_models import CACHE, CPU, GIB, facts, gpus, llama_8b, numbers

from pyggml.engine.balance import DeviceFacts
from pyggml.engine.demand import ModelFacts, whole_demand
from pyggml.engine.fit import fit, largest_ctx
from pyggml.engine.remedies import (
    Remedy,
    Wish,
    cut_demands,
    default_cuts,
    refusal_with_remedies,
    remedies,
    split_demands,
)


def wish(model: ModelFacts, devices: list[DeviceFacts], ctx: int | None = None) -> Wish:
    return Wish(model, devices, whole_demand(model, devices[0]), CACHE, ctx)


def told(found: list[Remedy]) -> list[str]:
    return [str(remedy) for remedy in found]


def test_weights_too_large_for_one_card_fit_two() -> None:
    asked = wish(facts(llama_8b()), [*gpus(4, 8), CPU])
    assert told(remedies(asked)) == ["--tp 2", "--layer-split 2"]


def test_weights_too_large_for_all_cards_fit_with_the_cpu() -> None:
    asked = wish(facts(llama_8b()), [*gpus(2, 3), CPU])
    assert told(remedies(asked)) == ["--layer-split 3 --device cuda:0,cuda:1,cpu", "--device cpu"]


def test_a_long_context_fits_two_cards_a_smaller_cache_or_a_shorter_context() -> None:
    model = facts(llama_8b())
    asked = wish(model, gpus(2, 20), ctx=30000)
    shorter = largest_ctx(model, asked.demands, CACHE)
    assert told(remedies(asked)) == [
        "--tp 2",
        "--layer-split 2",
        "--cache-type-k q8_0 --cache-type-v q8_0",
        f"--ctx {shorter}",
    ]


def test_the_fewest_cards_are_named() -> None:
    asked = wish(facts(llama_8b()), gpus(8, 4))
    assert told(remedies(asked)) == ["--tp 3", "--layer-split 3"]


def test_cards_that_are_not_the_first_are_named() -> None:
    devices = gpus(4, 8)
    devices[1] = replace(devices[1], free_bytes=0)
    assert told(remedies(wish(facts(llama_8b()), devices)))[:2] == [
        "--tp 2 --device cuda:0,cuda:2",
        "--layer-split 2 --device cuda:0,cuda:2",
    ]


def test_a_larger_card_comes_first() -> None:
    devices = gpus(2, 8)
    devices[1] = replace(devices[1], free_bytes=40 * GIB)
    assert told(remedies(wish(facts(llama_8b()), devices)))[0] == "--device cuda:1"


def test_where_only_a_shorter_context_helps_on_all_cards_it_is_named_with_them() -> None:
    model = facts(llama_8b())
    asked = wish(model, gpus(2, 6), ctx=100000)
    assert [remedy.settings.keys() for remedy in remedies(asked)] == [{"tp", "ctx"}, {"layer-split", "ctx"}]


@pytest.mark.parametrize("free, ctx", [(3, None), (8, None), (20, 30000), (6, 100000), (30, 131072)])
def test_every_remedy_fits(free: float, ctx: int | None) -> None:
    asked = wish(facts(llama_8b()), [*gpus(4, free), CPU], ctx)
    for remedy in remedies(asked):
        assert remedy.fit.is_fitting
        assert remedy.fit.n_ctx == remedy.settings.get("ctx", ctx or 2048)


def test_the_refusal_says_what_was_asked_what_is_and_what_would_work() -> None:
    asked = wish(facts(llama_8b()), gpus(2, 8))
    needed = fit(asked.model, asked.demands, CACHE, 2048).needed["cuda:0"]
    assert refusal_with_remedies(asked, remedies(asked)) == (
        f"ctx = 2048 with 4 slots needs {needed} bytes on cuda:0; {8 * GIB} are free; "
        "these fit: --tp 2; --layer-split 2"
    )
    alone = wish(facts(llama_8b()), gpus(1, 2))
    assert refusal_with_remedies(alone, remedies(alone)).endswith(
        "; nothing on this machine fits it; a smaller quantisation might"
    )


def test_where_it_was_asked_to_lie_stays_in_remedies_for_the_cache() -> None:
    model = facts(llama_8b())
    devices = gpus(2, 8)
    asked = Wish(model, devices, cut_demands(model, devices), CACHE, 40000, {"tp": 2})
    shorter = largest_ctx(model, asked.demands, CACHE)
    assert f"--tp 2 --ctx {shorter}" in told(remedies(asked))


def test_a_split_over_unlike_cards_fills_them_alike() -> None:
    model = facts(numbers(n_layer=60, n_embd=4096, n_head=32, n_head_kv=8, head_dim=128, n_ff=11008))
    devices = [gpus(1, 32)[0], replace(gpus(2)[1], free_bytes=16 * GIB)]
    a, b = split_demands(model, devices, CACHE, 2048)
    assert (a.n_layer, b.n_layer) == (40, 20)


def test_a_slow_device_still_gets_a_part_of_every_kind() -> None:
    slow = replace(CPU, bandwidth=1e9)
    fast = replace(gpus(1)[0], bandwidth=4e12)
    plan, reason = default_cuts(facts(numbers()), [fast, slow])
    assert plan.idle == () and "raised" in reason
