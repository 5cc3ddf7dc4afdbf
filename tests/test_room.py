"""Which model of several is taken because it fits: by the planner, from the heads of files, before any weight is here.

A tiny model of 2.7 MB as F16 and 1.4 MB as Q8_0 needs 15.8 and 14.5 MB with a context of 4096.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_calls import call
from fake_hub import FakeHub

import pyggml as gg
from pyggml.engine import device_facts
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.room import room

MB = 1_000_000
Free = Callable[[int], None]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Free:
    """Sets what is free on the CPU."""

    def set_free(n_bytes: int) -> None:
        monkeypatch.setattr(device_facts, "available_bytes", lambda: n_bytes)

    return set_free


@pytest.fixture
def hub(empty_hub: FakeHub, tiny: Callable[..., Path]) -> FakeHub:
    models = {f"m-{quant}.gguf": tiny("llama", quant=quant).read_bytes() for quant in ("F16", "Q8_0")}
    empty_hub.repos["o/tiny"] = models
    return empty_hub


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize(
    ("n_free", "options", "label"),
    [
        (16 * MB, (), "F16"),
        (15 * MB, (), "Q8_0"),
        (15 * MB, ("--reserve", "1"), ""),
        (16 * MB, ("--reserve", "1"), "Q8_0"),
        (14 * MB, (), ""),
        (14 * MB, ("--ctx", "1024"), "F16"),
        (16 * MB, ("--parallel", "2"), ""),
        (29 * MB, ("--parallel", "2"), "F16"),
        (15 * MB, ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0"), "F16"),
        (21 * MB, ("--device", "cpu,cpu", "--tp", "2"), "Q8_0"),
        (22 * MB, ("--device", "cpu,cpu", "--tp", "2"), "F16"),
        (1 * MB, (), ""),
    ],
)
def test_the_planner_decides(
    n_free: int, options: tuple[str, ...], label: str, is_here: bool, hub: FakeHub, free: Free,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if is_here:
        for quant in ("F16", "Q8_0"):
            call(capsys, "pull", f"hf:o/tiny:{quant}")
        hub.asked.clear()
    free(n_free)
    result = call(capsys, "plan", "hf:o/tiny", "--no-measure", "--device", "cpu", *options)
    said = f"hf:o/tiny: {label} is taken" if label else "no model of hf:o/tiny fits: the smallest is Q8_0"
    assert said in result.err, result.err
    assert bool(hub.asked) != is_here


def test_of_a_model_that_does_not_fit_only_the_head_comes(
    hub: FakeHub, free: Free, tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    free(10 * MB)
    result = call(capsys, "pull", "hf:o/tiny", "--device", "cpu", "--json")
    assert (result.status, result.out) == (2, "")
    assert "hf:o/tiny fits: the smallest is Q8_0 with 0.00 GiB: " in result.err
    assert [a.first_byte for a in hub.asked if "/cdn/" in a.path] == [0]


def test_a_split_model_is_judged_by_all_of_its_heads(
    empty_hub: FakeHub, free: Free, tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = tiny("llama", quant="F16", n_shards=3)
    files = sorted(first.parent.glob(first.name.replace("00001-of", "*-of")))
    names = [f"F16/m-F16-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
    empty_hub.repos["o/tiny"] = {name: path.read_bytes() for name, path in zip(names, files)}
    empty_hub.repos["o/tiny"]["m-Q8_0.gguf"] = tiny("llama", quant="Q8_0").read_bytes()
    for n_free, label in ((16 * MB, "F16"), (15 * MB, "Q8_0")):
        free(n_free)
        assert f"{label} is taken" in call(capsys, "pull", "hf:o/tiny", "--device", "cpu").err


def test_a_head_that_is_longer_than_was_asked_for_first_comes_in_steps(
    hub: FakeHub, free: Free, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyggml.engine.downloads.head._FIRST_BYTES", 5000)
    free(15 * MB)
    assert "Q8_0 is taken" in call(capsys, "pull", "hf:o/tiny", "--device", "cpu").err
    assert hub.starts("cdn/o/tiny/m-Q8_0.gguf") == [0, 5000, 0]  # and then the model
    assert hub.starts("cdn/o/tiny/m-F16.gguf") == [0]  # the same vocabulary is as long


@pytest.mark.parametrize("has_ranges", [True, False])
def test_what_the_planner_does_not_know_is_judged_by_its_size(
    has_ranges: bool, hub: FakeHub, free: Free, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.has_ranges = has_ranges
    hub.repos["o/alien"] = {"m-F16.gguf": b"GGUF" + b"x" * 2000, "m-Q8_0.gguf": b"GGUF" + b"x" * 1000}
    for n_free, label in ((2400, "F16"), (2300, "Q8_0"), (1100, "")):
        free(n_free)
        said = call(capsys, "pull", "hf:o/alien", "--device", "cpu").err
        assert (f"{label} is taken" if label else "the context needs some of it") in said


def test_a_child_process_says_the_same(hub: FakeHub, tiny: Callable[..., Path]) -> None:
    path = tiny("llama", quant="Q8_0")
    for options in (LoadOptions(device="cpu"), LoadOptions(device="cpu,cpu", tp=2, ctx=2**30)):
        here = room(options)
        in_child = replace(here, in_child=True).hindrance(path)
        assert in_child is not None
        assert bool(in_child) == bool(here.hindrance(path)) == (options.ctx is not None)


def test_of_replicas_the_one_with_least_room_decides(free: Free, tiny: Callable[..., Path]) -> None:
    free(36 * MB)
    alone, shared = room(LoadOptions(device="cpu", parallel=2)), room(LoadOptions(device="cpu,cpu", parallel=2), 2)
    assert (alone.free_bytes, shared.free_bytes) == (36 * MB, 18 * MB)
    assert shared.text.endswith(" GiB free on cpu for each of 2 replicas")
    path = tiny("llama", quant="F16")
    assert alone.hindrance(path) == "" and "ctx = 4096 with 2 slots needs" in str(shared.hindrance(path))


def test_what_is_free_is_asked_without_opening_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(device: gg.Device) -> int:
        raise AssertionError(f"{device.name} was opened")

    monkeypatch.setattr(gg.Device, "memory_free", property(opened))
    monkeypatch.setattr(gg.Device, "memory_free_unopened", property(lambda device: 5 * MB))
    assert room(LoadOptions(device="cpu")).free_bytes == 5 * MB
