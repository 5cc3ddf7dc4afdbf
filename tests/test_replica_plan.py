"""Replicas on paper: devices, reserves and threads dealt over them, memory divided, one context for all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call

import pyggml as gg
from pyggml.engine import ConfigError, Model
from pyggml.engine.cli.replicas import planned_replicas, processors
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.replica_options import replica_options
from pyggml.engine.replica_plan import ReplicaPlan, plan_replicas

CARDS = [gg.Device(f"cuda:{i}", "a card", "gpu", f"0000:0{i}:00.0", 2**36, "cuda", None) for i in range(4)]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four cards and eight processors."""
    known = {d.name: d for d in (*CARDS, gg.device("cpu"))}
    monkeypatch.setattr(gg, "device", known.__getitem__)
    monkeypatch.setattr(gg, "discrete_gpus", lambda: CARDS)
    monkeypatch.setattr(gg, "default_threads", lambda: 8)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("options", "n", "devices", "threads"),
    [
        ({}, 1, [None], None),
        ({}, 2, ["cuda:0", "cuda:1"], 8),
        ({"tp": 2}, 2, ["cuda:0,cuda:1", "cuda:2,cuda:3"], 8),
        ({"layer_split": 2, "device": "cuda:3,cuda:2,cuda:1,cuda:0"}, 2, ["cuda:3,cuda:2", "cuda:1,cuda:0"], 8),
        ({"device": "cpu,cpu,cpu,cpu"}, 4, ["cpu"] * 4, 2),
        ({"device": "cpu,cpu,cpu,cpu", "tp": 2}, 2, ["cpu,cpu"] * 2, 2),
        ({"device": "cpu,cpu,cpu"}, 3, ["cpu"] * 3, 2),
        ({"device": "cpu,cpu", "threads": 3}, 2, ["cpu"] * 2, 3),
        ({"device": "cuda:0,cpu"}, 2, ["cuda:0", "cpu"], 8),
        ({"device": ",".join(["cpu"] * 9)}, 9, ["cpu"] * 9, 1),
    ],
    ids=str,
)
def test_devices_are_dealt_in_order_and_threads_divided(
    options: dict[str, Any], n: int, devices: list[str | None], threads: int | None
) -> None:
    dealt = replica_options(LoadOptions(**options), n)
    assert [own.device for own in dealt] == devices
    assert {own.threads for own in dealt} == {threads}
    assert [own.n_ranks for own in dealt] == [LoadOptions(**options).n_ranks] * n


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("options", "n", "said"),
    [
        ({}, 5, r"--dp 5 need 5 GPUs and this machine shows 4 \(.*\); --dp 4 works, or list devices"),
        ({"tp": 4}, 2, r"--dp 2 --tp 4 need 8 GPUs and this machine shows 4 .*; --dp 1 works"),
        ({"layer_split": 5}, 2, r"--dp 2 --layer-split 5 need 10 GPUs .*; list devices"),
        ({"device": "cuda:0"}, 2, "lists 1 device for --dp 2, which need 2; use --device cuda:0,cuda:0"),
        ({"device": "cuda:0,cuda:1,cuda:2"}, 2, "lists 3 devices .* use --dp 3"),
        ({"device": "cuda:0,cuda:1,cuda:2,cuda:3"}, 2, "lists 4 devices .* use --dp 4"),
        ({"device": "cuda:0,cuda:1,cuda:2", "tp": 2}, 3, "for --dp 3 --tp 2, which need 6; use --dp 3 without --tp"),
        ({"device": "cuda:0,cuda:1", "reserve": [1, 2, 3]}, 2, "3 numbers of MiB; 2 replicas have 2 devices"),
    ],
    ids=str,
)
def test_a_list_of_another_length_is_refused_with_what_works(options: dict[str, Any], n: int, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        replica_options(LoadOptions(**options), n)


@pytest.mark.usefixtures("cards")
@pytest.mark.parametrize(
    ("reserve", "dealt"),
    [(512, [512, 512]), ([1, 2, 3, 4], [[1, 2], [3, 4]]), ("1,2,3", [[1, 2], [3, 0]]), (None, [None, None])],
    ids=str,
)
def test_what_stays_free_is_dealt_with_the_devices(reserve: Any, dealt: list[Any]) -> None:
    assert [own.reserve for own in replica_options(LoadOptions(tp=2, reserve=reserve), 2)] == dealt


def planned(path: Path, free_bytes: int, monkeypatch: pytest.MonkeyPatch, n: int, **options: Any) -> ReplicaPlan:
    """The plan of n replicas on a CPU with so much memory."""
    monkeypatch.setattr("pyggml.engine.device_facts.free_bytes", lambda device: free_bytes)
    with contextlib.closing(Model(path)) as model:
        given = LoadOptions(device=",".join(["cpu"] * n), **options)
        return plan_replicas(model, replica_options(given, n))


def test_replicas_on_one_device_divide_its_memory_and_have_one_context(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama", quant="Q4_0")
    least = planned(path, 2**40, monkeypatch, 1, ctx=64).placements[0][0].n_bytes
    plans = {n: planned(path, 18 * least, monkeypatch, n) for n in (2, 3)}
    assert plans[3].n_ctx < plans[2].n_ctx
    for n, plan in plans.items():
        assert [own.ctx for own in plan.options] == [plan.n_ctx] * n
        assert sum(placed[0].n_bytes for placed in plan.placements) <= 18 * least


@pytest.mark.parametrize("quant", ["F32", "Q8_0", "Q4_0"])
def test_mapped_weights_are_there_once_and_copied_ones_in_each_replica(
    quant: str, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with gg.Backend("cpu") as backend:
        is_mapped = backend.weight_buffer_type((64, 64), gg.dtype(quant.lower())) == backend.buffer_types()[-1]
    assert quant == "Q8_0" or is_mapped == (quant == "F32")  # AMX has a layout for Q8_0
    path = tiny("llama", quant=quant)
    one = planned(path, 2**40, monkeypatch, 1, ctx=64).placements[0][0]
    enough = one.weights_bytes + 4 * (one.n_bytes - one.weights_bytes) + 4096
    if is_mapped:
        assert planned(path, enough, monkeypatch, 4, ctx=64).n_ctx == 64
    else:
        with pytest.raises(ConfigError, match=r"replica 0 \(cpu\): ctx = 64 with 4 slots needs"):
            planned(path, enough, monkeypatch, 4, ctx=64)


def test_a_replica_that_does_not_fit_is_named_with_what_would(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama")
    least = planned(path, 2**40, monkeypatch, 1, ctx=64).placements[0][0].n_bytes
    with pytest.raises(ConfigError, match=r"^replica 0 \(cpu\): ctx = 4096 .* these fit: .*--ctx \d+$") as refused:
        planned(path, 4 * least, monkeypatch, 2, ctx=4096)
    assert "--device" not in str(refused.value)
    fitted = planned(path, 4 * least, monkeypatch, 2, ctx=4096, fit="auto")
    assert {(own.fit, own.ctx) for own in fitted.options} == {(None, fitted.n_ctx)}
    assert fitted.n_ctx < 4096 or fitted.options[0].cache_type_k == "q8_0"


def test_planning_happens_in_a_process_of_its_own(tiny: Callable[..., Path]) -> None:
    asked = replica_options(LoadOptions(device="cpu,cpu", reserve=16), 2)
    found = planned_replicas(str(tiny("llama")), asked)
    assert [(own.device, own.reserve, own.threads) for own in found] == [("cpu", 16, asked[0].threads)] * 2
    assert found[0].ctx == found[1].ctx == 4096
    with pytest.raises(ConfigError, match=r"nothing\.gguf"):
        planned_replicas("nothing.gguf", asked)


@pytest.mark.parametrize(
    ("n_able", "n", "tp", "dealt"),
    [(2, 2, None, [(0,), (1,)]), (5, 2, None, [(0, 1), (2, 3)]), (8, 2, 2, [(0, 1, 2, 3), (4, 5, 6, 7)])],
)
def test_processors_are_dealt_to_replicas_on_the_cpu(
    n_able: int, n: int, tp: int | None, dealt: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replica_options(LoadOptions(device=",".join(["cpu"] * n * (tp or 1)), tp=tp), n)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(n_able)))
    assert processors(options) == dealt


def test_more_replicas_than_processors_cannot_be_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    with pytest.raises(ConfigError, match="a processor for each of the 2 CPU ranks; this process may use 1"):
        processors(replica_options(LoadOptions(device="cpu,cpu"), 2))


def test_the_plan_tells_of_each_replica(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("plan", tiny("llama"), "--dp", 2, "--device", "cpu,cpu,cpu,cpu", "--tp", 2, "--no-measure")
    lines = call(capsys, *arguments).out.splitlines()
    for number in range(2):
        assert any(line.startswith(f"replica {number}: --device cpu,cpu --tp 2 ") for line in lines)
        assert any(line.startswith(f"replica {number}: Tensor parallelism: 2 ranks (cpu, cpu)") for line in lines)
    assert lines[-1].startswith("2 replicas answer beside each other; a request of 4096 tokens")
    document = json.loads(call(capsys, *arguments, "--json").out)
    assert [row["placement"]["n_ctx"] for row in document["replicas"]] == [4096] * 2
    refused = call(capsys, *arguments, "--ctx", 10**9)
    assert (refused.status, "replica 0 (cpu,cpu): " in refused.err) == (2, True)
