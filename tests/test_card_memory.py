"""NVIDIA cards are listed and compared without being opened; no card or driver is needed here."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import pyggml as gg
from pyggml import card_memory
from pyggml._ffi import ffi
from pyggml.errors import BuildError

MODULE = sys.modules["pyggml.device"]
FREE = {b"0000:01:00.0": 10, b"0000:02:00.0": 30}


class FakeDriver:
    """NVML over the cards in FREE. `broken` names a function that fails."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def nvmlInit_v2(self) -> int:
        return int(self.broken == "init")

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, card: Any) -> int:
        card._obj.value = 1 + list(FREE).index(bus_id) if bus_id in FREE else None
        return 0 if bus_id in FREE and self.broken != "handle" else 6

    def nvmlDeviceGetMemoryInfo(self, card: Any, memory: Any) -> int:
        memory._obj.free = list(FREE.values())[card.value - 1]
        return int(self.broken == "memory")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    gg.devices()  # loads real libraries
    card_memory._nvml.cache_clear()
    yield
    card_memory._nvml.cache_clear()


def driver(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver | None) -> None:
    def load(name: str) -> FakeDriver:
        if fake is None:
            raise OSError(name)
        return fake

    monkeypatch.setattr(ctypes, "CDLL", load)


def card(i: int, total: int = 2**34) -> gg.Device:
    return gg.Device(f"cuda:{i}", "NVIDIA H200", "gpu", f"0000:0{i + 1}:00.0", total, "cuda", None)


def test_the_driver_tells_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, FakeDriver())
    assert [card_memory.free_bytes(f"0000:0{i}:00.0") for i in (1, 2, 3)] == [10, 30, None]


@pytest.mark.parametrize("broken", ["init", "handle", "memory", None])
def test_where_the_driver_does_not_tell_the_device_is_asked(
    broken: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver(monkeypatch, None if broken is None else FakeDriver(broken))
    assert card_memory.free_bytes("0000:01:00.0") is None
    monkeypatch.setattr(gg.Device, "memory_free", property(lambda device: 77))
    assert card(0).memory_free_unopened == 77


def test_the_default_is_chosen_without_opening_any_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(device: gg.Device) -> int:
        raise AssertionError(f"{device.name} was opened")

    driver(monkeypatch, FakeDriver())
    monkeypatch.setattr(gg.Device, "memory_free", property(opened))
    cpu = gg.device("cpu")
    monkeypatch.setattr(MODULE, "devices", lambda: (cpu, card(0), card(1)))
    assert gg.default_device().name == "cuda:1"


def test_a_part_of_a_card_has_no_more_free_than_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, FakeDriver())
    assert card(1, total=20).memory_free_unopened == 20


@pytest.mark.parametrize("name", ["cpu", "vulkan:0", "cuda:0 emulated"])
def test_other_devices_are_asked_themselves(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(monkeypatch, FakeDriver())
    monkeypatch.setattr(gg.Device, "memory_free", property(lambda device: 77))
    bus_id = "0000:01:00.0-v0" if "emulated" in name else "0000:01:00.0"
    assert gg.Device(name, "", "gpu", bus_id, 2**34, name.split(":")[0], None).memory_free_unopened == 77


def facts(index: int, bus_id: Any, size: int, n_bytes: Any, *reason: Any) -> bool:
    ffi.memmove(bus_id, b"0000:1B:00.0\0", 13)
    n_bytes[0] = 2**37
    return index == 0


def test_address_and_size_come_from_our_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_memory, "cuda_api", lambda: SimpleNamespace(card_facts=facts))
    assert card_memory.card_facts(0) == ("0000:1b:00.0", 2**37)
    assert card_memory.card_facts(1) is None
    monkeypatch.setenv("GGML_CUDA_DEVICES", "4")
    assert card_memory.card_facts(0) is None


def test_without_our_module_ggml_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise BuildError("of another build")

    for api in (lambda: None, broken):
        monkeypatch.setattr(card_memory, "cuda_api", api)
        assert card_memory.card_facts(0) is None


def test_only_cuda_cards_are_told_by_our_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_memory, "card_facts", lambda index: ("0000:1b:00.0", 2**37))
    assert MODULE._card_facts("cuda", 0) == ("0000:1b:00.0", 2**37)  # type: ignore[attr-defined]
    assert MODULE._card_facts("vulkan", 0) is None  # type: ignore[attr-defined]
    assert MODULE._told_facts(gg.device("cpu").handle)[1] == gg.device("cpu").memory_total  # type: ignore[attr-defined]
