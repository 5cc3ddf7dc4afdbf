"""Memory that stays free: in the planner's arithmetic, in remedies, and through every door to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call
from paper_models import CACHE, GIB, facts, gpus, llama_8b, numbers

import pyggml as gg
from pyggml.engine import LLM, ConfigError
from pyggml.engine.balance import DeviceFacts
from pyggml.engine.cli import bench_modes
from pyggml.engine.cli.options import options_of
from pyggml.engine.cli.settings import settle
from pyggml.engine.demand import whole_demand
from pyggml.engine.device_facts import device_facts
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.outlook import ways
from pyggml.engine.remedies import Wish, cut_demands, remedies
from pyggml.engine.reserve import MIB, reserve_on

NAMES = ("cuda:0", "cuda:1", "cuda:2")


@pytest.mark.parametrize(
    ("asked", "mib"),
    [
        (None, (0, 0, 0)),
        (512, (512, 512, 512)),
        ("512", (512, 512, 512)),
        ("1,2,3", (1, 2, 3)),
        ([1, 2, 3], (1, 2, 3)),
        ("1,2", (1, 2, 0)),
    ],
)
def test_one_number_counts_for_all_and_several_for_devices_in_order(
    asked: Any, mib: tuple[int, ...]
) -> None:
    reserve = reserve_on(asked, NAMES)
    assert tuple(reserve.bytes_of(name) // MIB for name in NAMES) == mib


def test_only_one_number_counts_for_devices_that_were_not_chosen() -> None:
    assert reserve_on(7, ["cuda:0"]).bytes_of("cpu") == 7 * MIB
    assert reserve_on("7,8", ["cuda:0", "cuda:1"]).bytes_of("cpu") == 0


def test_ranks_on_one_device_keep_the_largest_of_their_numbers_free() -> None:
    assert reserve_on("5,9", ["cpu", "cpu"]).setting(["cpu"]) == {"reserve": 9}


@pytest.mark.parametrize("asked", [-1, "1,-2", "x", "1,", "", [], 1.5, [1.5], True, [True]])
def test_what_is_no_list_of_whole_numbers_is_refused(asked: Any) -> None:
    with pytest.raises(ConfigError, match="reserve = .*; whole numbers of MiB are needed"):
        LoadOptions(reserve=asked)


def reserved(devices: Sequence[DeviceFacts], *gib: int) -> list[DeviceFacts]:
    pairs = zip(devices, gib)
    return [replace(d, free_bytes=d.free_bytes - n * GIB, reserved_bytes=n * GIB) for d, n in pairs]


@pytest.mark.parametrize(
    ("gib", "told"),
    [
        ((1, 1), ["--tp 2 --reserve 1024", "--layer-split 2 --reserve 1024"]),
        ((1, 2), ["--tp 2 --reserve 1024,2048", "--layer-split 2 --reserve 1024,2048"]),
        ((0, 0), ["--tp 2", "--layer-split 2"]),
    ],
)
def test_remedies_keep_free_what_was_to_stay_free(gib: tuple[int, int], told: list[str]) -> None:
    model, devices = facts(llama_8b()), reserved(gpus(2, 8), *gib)
    wish = Wish(model, devices, whole_demand(model, devices[0]), CACHE, settings={})
    assert [str(remedy) for remedy in remedies(wish)] == told


def test_a_remedy_in_the_same_place_keeps_the_options_own_words() -> None:
    model, devices = facts(llama_8b()), reserved(gpus(2, 8), 1, 1)
    own: dict[str, str | int] = {"tp": 2, "reserve": "1024,1024"}
    wish = Wish(model, devices, cut_demands(model, devices), CACHE, 40000, own)
    shorter = [r.settings for r in remedies(wish) if {"tp", "ctx"} <= r.settings.keys()]
    assert [settings["reserve"] for settings in shorter] == ["1024,1024"]


def test_ways_to_place_a_model_keep_it_for_their_own_devices() -> None:
    reserve = reserve_on("1,2,3", NAMES)
    found = [o.text for o in ways(LoadOptions(), "cuda:2", NAMES, reserve, are_default=True)]
    assert found == [
        "--device cuda:2 --reserve 3",
        "--tp 2 --reserve 1,2",
        "--tp 3 --reserve 1,2,3",
        "--layer-split 2 --reserve 1,2",
        "--layer-split 3 --reserve 1,2,3",
    ]


def test_modes_that_are_compared_keep_it_for_their_own_devices() -> None:
    options = options_of("bench")
    words = {"device": "cpu,cpu", "reserve": "1,2", "modes": "all"}
    settings = settle("bench", options, {name: [(text, f"--{name}")] for name, text in words.items()}, {})
    assert [where["reserve"] for where in bench_modes.modes(settings)] == [2, 2, 2]


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def say(n_bytes: int) -> None:
        monkeypatch.setattr("pyggml.engine.device_facts.free_bytes", lambda device: n_bytes)

    return say


def test_it_makes_the_context_smaller_and_is_told(tiny: Callable[..., Path], free: Callable[[int], None]) -> None:
    free(16 * MIB)
    contexts = []
    for reserve in (None, 4):
        with LLM(tiny("llama"), device="cpu", threads=1, parallel=1, reserve=reserve) as llm:
            contexts.append(llm.n_ctx)
    assert contexts[1] < contexts[0]
    assert llm.notes[0] == "cpu keeps 4 MiB free"


@pytest.mark.parametrize("door", ["command line", "environment", "file"])
def test_plan_tells_what_stays_free_through_every_door(
    door: str, tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    arguments: list[Any] = ["plan", tiny("llama"), "--device", "cpu,cpu", "--tp", 2, "--no-measure", "--json"]
    if door == "command line":
        arguments += ["--reserve", "3,5"]
    elif door == "environment":
        monkeypatch.setenv("PYGGML_RESERVE", "3,5")
    else:
        (tmp_path / "c.json").write_text(json.dumps({"reserve": [3, 5]}))
        arguments += ["--config", tmp_path / "c.json"]
    document = json.loads(call(capsys, *arguments).out)
    assert [d["reserved_bytes"] for d in document["devices"]] == [5 * MIB]
    assert "cpu keeps 5 MiB free" in document["notes"]
    assert document["options"] == "--device cpu,cpu --tp 2 --reserve 3,5"
    assert {"--device cpu --reserve 5", "--device cpu,cpu --layer-split 2 --reserve 5"} <= {
        mode["options"] for mode in document["modes"]
    }


def test_a_refusal_names_it_and_its_remedy_loads(tiny: Callable[..., Path], free: Callable[[int], None]) -> None:
    free(16 * MIB)
    with pytest.raises(ConfigError, match=r"beside 4 MiB in reserve; these fit: .*--ctx \d+ --reserve 4"):
        LLM(tiny("llama"), device="cpu", threads=1, ctx=100000, reserve=4)
    with LLM(tiny("llama"), device="cpu", threads=1, ctx=100000, reserve=4, fit="auto") as llm:
        assert llm.notes[0].startswith("--fit auto took ")
        assert "cpu keeps 4 MiB free" in llm.notes


def test_an_open_device_has_what_is_free_less_what_stays_free(free: Callable[[int], None]) -> None:
    free(100 * MIB)
    for mib, left in ((30, 70), (300, 0)):
        (found,) = device_facts([gg.device("cpu")], facts_of_tiny(), CACHE, reserve_on(mib, ["cpu"]))
        assert (found.free_bytes, found.reserved_bytes) == (left * MIB, mib * MIB)


def facts_of_tiny() -> Any:
    model = facts(numbers())
    model.types.update(dict.fromkeys(model.types, gg.dtype("q8_0")))  # type: ignore[attr-defined]
    return model
