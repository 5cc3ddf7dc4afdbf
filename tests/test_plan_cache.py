"""Which plans leave a full cache: those not used for longest, by count, by host arrays, and where a card is full."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pyggml.engine import plan_cache
from pyggml.engine.forward import PlanShape
from pyggml.engine.plan_cache import PlanCache


@dataclass
class FakePlan:
    shape: PlanShape
    host_bytes: int = 100
    is_stale: bool = False
    is_closed: bool = False

    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeDevice:
    memory_free: int = 10 << 30
    kind: str = "gpu"


def shape(n: int) -> PlanShape:
    return PlanShape(n, 1, 0, 256, 1)


def make(key: PlanShape) -> Any:
    return FakePlan(key)


def held(cache: PlanCache) -> list[int]:
    return [key.n_tokens for key, _ in cache.items()]


def test_the_one_not_used_for_longest_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_PLANS", 3)
    cache = PlanCache([])
    made: list[Any] = [cache.add(shape(n), make) for n in (1, 2, 3)]
    assert cache.find(shape(1)) is made[0] and cache.find(shape(9)) is None
    cache.add(shape(4), make)
    assert held(cache) == [3, 1, 4] and made[1].is_closed and not made[0].is_closed
    cache.clear()
    assert held(cache) == [] and made[0].is_closed


def test_host_arrays_are_bounded_but_for_those_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_HOST_BYTES", 250)
    cache = PlanCache([])
    cache.kept = {shape(1), shape(2)}
    for n in (1, 2, 3):
        cache.add(shape(n), make)
    assert held(cache) == [1, 2, 3]
    cache.kept = ()
    cache.add(shape(4), make)
    assert held(cache) == [3, 4]


def test_one_plan_too_large_for_the_bound_is_used_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "MAX_HOST_BYTES", 50)
    cache = PlanCache([])
    cache.add(shape(1), make)
    cache.add(shape(2), make)
    assert held(cache) == [2]


def test_on_a_full_card_a_new_plan_takes_the_place_of_another() -> None:
    cards: list[Any] = [FakeDevice(), FakeDevice(), FakeDevice(memory_free=0, kind="cpu")]
    cache = PlanCache(cards)
    for n in (1, 2, 3):
        cache.add(shape(n), make)
    cards[1].memory_free = plan_cache.MIN_FREE_BYTES - 1
    cache.add(shape(4), make)
    assert held(cache) == [2, 3, 4]
    cards[1].memory_free += 1
    cache.add(shape(5), make)
    assert held(cache) == [2, 3, 4, 5]


def test_a_full_card_still_has_its_only_plan() -> None:
    cards: list[Any] = [FakeDevice(memory_free=0)]
    cache = PlanCache(cards)
    for n in (1, 2):
        cache.add(shape(n), make)
        assert held(cache) == [n]


def test_plans_whose_memory_moved_leave_together() -> None:
    cache = PlanCache([])
    made: list[Any] = [cache.add(shape(n), make) for n in (1, 2, 3)]
    made[0].is_stale = made[2].is_stale = True
    assert cache.find(shape(2)) is made[1]
    assert cache.find(shape(3)) is None
    assert held(cache) == [2] and made[0].is_closed and made[2].is_closed
