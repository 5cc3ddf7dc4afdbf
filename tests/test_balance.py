"""Shares by hand and by measurement, units dealt by share, layers over devices."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from paper_models import CACHE, GIB, facts, gpus, llama_8b

import pyggml as gg
from pyggml.engine.balance import DeviceFacts, deal, default_shares, layer_split, memory_each, parse_shares
from pyggml.engine.errors import ConfigError
from pyggml.engine.fit import fit
from pyggml.engine.remedies import cut_demands


def gpu(
    name: str, free: int, bandwidth: float | None = None, description: str = "NVIDIA H200"
) -> DeviceFacts:
    return DeviceFacts(name, "gpu", description, free * GIB, bandwidth)


# Shares by hand


@pytest.mark.parametrize(
    "text, n, right",
    [
        ("3,1", 2, (3, 1)),
        ("3/1", 2, (3, 1)),
        ("0.5,0.25/1", 3, (0.5, 0.25, 1)),
        ("3,1", 3, (3, 1, 0)),
        ("0,1", 2, (0, 1)),
        ("1,0", 2, (1, 0)),
    ],
)
def test_shares_are_read(text: str, n: int, right: tuple[float, ...]) -> None:
    assert parse_shares(text, n) == right


@pytest.mark.parametrize(
    "text, message",
    [
        ("0,0", "tensor-split = 0,0 gives no device anything; one share must be above 0"),
        ("1,-1", "tensor-split = 1,-1; shares must be 0 or more"),
        ("inf,1", "tensor-split = inf,1; shares must be 0 or more"),
        ("3,one", "tensor-split = '3,one'; shares are numbers, as in 3,1"),
        ("", "tensor-split = ''; shares are numbers, as in 3,1"),
        ("1,2,3", "tensor-split = '1,2,3' has 3 shares; there are 2 devices for them"),
    ],
)
def test_shares_that_cannot_be_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_shares(text, 2)
    assert str(refused.value) == message


# Units by share


@pytest.mark.parametrize(
    "n, shares, right",
    [
        (9, (1, 1), (5, 4)),
        (9, (1, 1, 1, 1), (3, 2, 2, 2)),
        (8, (3, 1), (6, 2)),
        (3, (3, 1), (2, 1)),
        (10, (1, 2, 1), (3, 5, 2)),
        (2, (1, 1, 1), (1, 1, 0)),
        (5, (0, 1), (0, 5)),
        (7, (0.1, 0.2, 0.7), (1, 1, 5)),
    ],
)
def test_units_go_by_largest_remainder_and_then_to_lower_ranks(
    n: int, shares: tuple[float, ...], right: tuple[int, ...]
) -> None:
    assert deal(n, shares) == right


def test_even_deals_differ_by_one_unit_at_most_and_give_all() -> None:
    for n, ranks in itertools.product(range(40), range(1, 17)):
        counts = deal(n, (1,) * ranks)
        assert sum(counts) == n
        assert max(counts) - min(counts) <= 1
        assert list(counts) == sorted(counts, reverse=True)


# Shares by measurement


def test_like_devices_share_evenly_whatever_was_measured() -> None:
    shares = default_shares([gpu("cuda:0", 100, 4e12), gpu("cuda:1", 120, 3e12)])
    assert shares.values == (1, 1)
    assert shares.reason == "even among 2 x NVIDIA H200"


def test_unlike_devices_share_by_bandwidth() -> None:
    shares = default_shares([gpu("cuda:0", 100, 3e12), gpu("cuda:1", 100, 1e12, "NVIDIA A40")])
    assert shares.values == (0.75, 0.25)
    assert shares.reason == "by measured bandwidth: cuda:0 75 %, cuda:1 25 %"


def test_unlike_devices_share_by_free_memory_where_one_is_unmeasured() -> None:
    shares = default_shares([gpu("cuda:0", 32, 3e12), gpu("cuda:1", 16, None, "NVIDIA A40")])
    assert shares.values == pytest.approx((2 / 3, 1 / 3))
    assert shares.reason == "by free memory: cuda:0 67 %, cuda:1 33 %"


def test_no_device_gets_more_than_its_memory_takes() -> None:
    devices = [gpu("cuda:0", 10, 3e12), gpu("cuda:1", 40, 1e12, "NVIDIA A40")]
    shares = default_shares(devices, cut_bytes=32 * GIB, whole_bytes=2 * GIB)
    assert shares.values == (0.25, 0.75)
    assert shares.reason == "by measured bandwidth, held to free memory: cuda:0 25 %, cuda:1 75 %"


def test_like_devices_share_unevenly_when_one_is_filled_by_others() -> None:
    shares = default_shares([gpu("cuda:0", 4), gpu("cuda:1", 40), gpu("cuda:2", 40)], cut_bytes=24 * GIB)
    assert shares.values == pytest.approx((4 / 24, 10 / 24, 10 / 24))


def test_shares_stay_as_they_are_when_nothing_fits() -> None:
    assert default_shares([gpu("cuda:0", 4), gpu("cuda:1", 8)], cut_bytes=24 * GIB).values == (1, 1)


# Layers


def fractions(
    spans: tuple[tuple[int, int], ...], layers: list[int], first: int, last: int, kv: int, free: list[int]
) -> list[float]:
    used = [sum(layers[a:b]) + kv * (b - a) for a, b in spans]
    used[0] += first
    used[-1] += last
    return [u / f for u, f in zip(used, free)]


def test_layers_are_split_for_the_smallest_largest_part_of_free_memory() -> None:
    draw = random.Random(5)
    for _ in range(60):
        n_layer, n = draw.randint(3, 9), draw.randint(2, 3)
        layers = [draw.randint(1, 20) for _ in range(n_layer)]
        first, last, kv = draw.randint(0, 30), draw.randint(0, 30), draw.randint(0, 5)
        free = [draw.randint(20, 200) for _ in range(n)]
        spans = layer_split(layers, first, last, kv, free)
        every = (
            tuple(itertools.pairwise((0, *cuts, n_layer)))
            for cuts in itertools.combinations(range(1, n_layer), n - 1)
        )
        best = min(max(fractions(s, layers, first, last, kv, free)) for s in every)
        assert max(fractions(spans, layers, first, last, kv, free)) == best
        assert [spans[0][0], *(b for _, b in spans)] == [0, *(a for a, _ in spans[1:]), n_layer]


def test_a_larger_card_gets_more_layers_and_both_are_filled_alike() -> None:
    layers, free = [GIB] * 47, [48 * GIB, 24 * GIB]
    spans = layer_split(layers, GIB, GIB, 0, free)
    a, b = fractions(spans, layers, GIB, GIB, 0, free)
    assert abs(a - b) < GIB / min(free)


def test_even_layers_over_even_cards_put_the_surplus_first() -> None:
    assert layer_split([1] * 10, 0, 0, 0, [100, 100, 100]) == ((0, 4), (4, 7), (7, 10))


def test_embedding_counts_on_the_first_device_and_the_head_on_the_last() -> None:
    assert layer_split([1] * 10, 4, 0, 0, [100, 100]) == ((0, 3), (3, 10))
    assert layer_split([1] * 10, 0, 4, 0, [100, 100]) == ((0, 7), (7, 10))


def test_the_cache_of_a_layer_counts_with_it() -> None:
    assert layer_split([9, 9, 1, 1, 1, 1], 0, 0, 0, [100, 100]) == ((0, 1), (1, 6))
    assert layer_split([9, 9, 1, 1, 1, 1], 0, 0, 100, [100, 100]) == ((0, 3), (3, 6))


def test_a_cpu_at_the_end_takes_only_what_the_gpus_cannot() -> None:
    layers, free = [GIB] * 20, [8 * GIB, 4 * GIB, 500 * GIB]
    assert layer_split(layers, GIB, GIB, 0, free, is_last_cpu=True) == ((0, 7), (7, 11), (11, 20))
    assert layer_split(layers, 0, 0, 0, [100 * GIB, 500 * GIB], is_last_cpu=True) == ((0, 19), (19, 20))


def test_counts_are_used_as_they_are() -> None:
    assert layer_split([1] * 48, 5, 5, 5, [100, 1], [20, 28]) == ((0, 20), (20, 48))
    assert layer_split([1] * 4, 0, 0, 0, [100, 100], [0, 4]) == ((0, 0), (0, 4))


@pytest.mark.parametrize(
    "n_layer, n_devices, counts, message",
    [
        (48, 2, [20, 27], "layer counts 20,27; counts of 0 or more that sum to 48 layers are needed"),
        (48, 2, [50, -2], "layer counts 50,-2; counts of 0 or more that sum to 48 layers are needed"),
        (48, 2, [20, 20, 8], "layer counts 20,20,8 are for 3 devices; the split has 2"),
        (4, 5, None, "layer-split = 5; the model has 4 layers, so 4 devices at most"),
        (48, 17, None, "layer-split = 17; 1 to 16 devices are supported"),
    ],
)
def test_splits_that_cannot_be_are_refused(
    n_layer: int, n_devices: int, counts: list[int] | None, message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        layer_split([1] * n_layer, 0, 0, 0, [100] * n_devices, counts)
    assert str(refused.value) == message


def test_devices_of_one_card_share_its_memory() -> None:
    """cuda:0 and vulkan:0 may be the same card, which then has to hold both ranks."""
    card = "0000:01:00.0"
    cuda, vulkan, other = (replace(d, free_bytes=10 * GIB) for d in gpus(3))
    both = [replace(cuda, card=card), replace(vulkan, name="vulkan:0", card=card), replace(other, card="0000:02:00.0")]
    assert memory_each(both) == [5 * GIB, 5 * GIB, 10 * GIB]
    model = facts(llama_8b(), gg.dtype("q8_0"))
    found = fit(model, cut_demands(model, both), CACHE, 512)
    assert found.free == {"cuda:0": 10 * GIB, "cuda:2": 10 * GIB}
    assert found.needed["cuda:0"] > 1.9 * found.needed["cuda:2"]
    assert found.tightest == "cuda:0"
