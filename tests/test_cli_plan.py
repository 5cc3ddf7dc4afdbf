"""`pyggml plan`: what would lie where, which degrees work, what is predicted, without reading a weight."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cli_calls import call
from paper_models import facts, gpus, llama_8b, numbers

import pyggml as gg
from pyggml.engine import LLM
from pyggml.engine.balance import DeviceFacts
from pyggml.engine.cli.plan_report import PlanReport
from pyggml.engine.demand import ModelFacts
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.measuring import SUM_ELEMENTS, Speed, best_seconds, device_speed, link_times, main_type
from pyggml.engine.outlook import Outlook, fastest, outlook, ways
from pyggml.engine.prediction import LinkTimes, Mode
from pyggml.engine.topology import Seat

TWO = ("--device", "cpu,cpu", "--threads", 1)


@pytest.fixture(autouse=True)
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be loaded."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pyggml.engine.weights.Weights.__init__", fail)
    monkeypatch.setattr(gg, "discrete_gpus", list)


def planned(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    result = call(capsys, "plan", *arguments, "--json")
    assert (result.status, result.err) == (0, "")
    document: dict[str, Any] = json.loads(result.out)
    return document


def test_every_mode_is_measured_and_predicted(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    document = planned(capsys, tiny("llama"), *TWO)
    modes = {mode["options"]: mode for mode in document["modes"]}
    assert list(modes) == ["--device cpu", "--device cpu,cpu --tp 2", "--device cpu,cpu --layer-split 2"]
    for mode in modes.values():
        assert mode["fits"] and mode["n_ctx"] == mode["largest_ctx"] == 4096
        assert 0 < mode["token_s"] < mode["first_token_s"]
        assert mode["placement"]["n_bytes"] == sum(rank["weights_bytes"] + rank["cache_bytes"] + rank["compute_bytes"]
                                                   for rank in mode["placement"]["ranks"])  # fmt: skip
    assert modes["--device cpu"]["link_s"] == 0 < modes["--device cpu,cpu --tp 2"]["link_s"]
    assert [point[0] for point in modes["--device cpu,cpu --tp 2"]["links"]["reduce"]] == [4 * n for n in SUM_ELEMENTS]
    best = min(modes, key=lambda options: modes[options]["token_s"])
    assert document["options"] == best
    assert document["advice"].startswith(
        f"{'one device' if best == '--device cpu' else best} is fastest for a token"
    )


def test_nothing_is_measured_when_that_is_not_wanted(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyggml.Group.__init__", None)
    document = planned(capsys, tiny("llama"), *TWO, "--no-measure")
    assert [mode["token_s"] for mode in document["modes"]] == [None] * 3
    assert document["advice"] == "nothing was measured"
    assert document["options"] == "--device cpu"


def test_a_device_that_cannot_be_measured_is_planned_all_the_same(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Speed:
        raise gg.AllocationError("cpu: no 1 bytes; 0 are free")

    monkeypatch.setattr("pyggml.engine.measuring.device_speed", fail)
    document = planned(capsys, tiny("llama"), "--device", "cpu")
    assert document["modes"][0]["fits"]
    assert document["modes"][0]["fault"] == "cpu: no 1 bytes; 0 are free"
    text = call(capsys, "plan", tiny("llama"), "--device", "cpu").out
    assert "not measured: cpu: no 1 bytes; 0 are free" in text


def test_the_mode_that_is_asked_for_comes_first_and_is_placed(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--tp", 2, "--tensor-split", "3,1", "--ctx", 512, "--parallel", 3)
    document = planned(capsys, tiny("llama", n_head=8, n_head_kv=4), *TWO, *asked, "--no-measure")
    assert document["options"] == document["modes"][0]["options"] == "--device cpu,cpu --tp 2 --tensor-split 3,1"
    assert [rank["n_head_kv"] for rank in document["placement"]["ranks"]] == [3, 1]
    assert (document["placement"]["n_ctx"], document["placement"]["n_slots"]) == (512, 3)
    assert document["notes"] == ["Tensor parallelism: 2 ranks (cpu, cpu)", "shares as given: 3,1"]


def test_what_is_planned_is_what_gets_loaded(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama", n_head=8, n_head_kv=4, quant="Q8_0")
    document = planned(capsys, path, *TWO, "--tp", 2, "--ctx", 1024, "--no-measure")
    monkeypatch.undo()
    with LLM(path, device="cpu,cpu", tp=2, ctx=1024, parallel=1, threads=1) as llm:
        for rank, real in zip(document["placement"]["ranks"], llm.plan, strict=True):
            assert real.weights_bytes + real.mapped_bytes == pytest.approx(rank["weights_bytes"], rel=0.02)
            assert real.cache_bytes == pytest.approx(rank["cache_bytes"], rel=0.02)


def test_degrees_that_do_not_work_have_their_reason(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny("llama", quant="Q4_K", n_ff=512)
    document = planned(capsys, path, "--device", "cpu", "--no-measure")
    works = [degree["n_ranks"] for degree in document["degrees"] if not degree["obstacle"]]
    assert works == [1, 2]
    assert [degree["n_ranks"] for degree in document["degrees"]] == list(range(1, 17))
    text = call(capsys, "plan", path, "--device", "cpu", "--no-measure").out
    others = ", ".join(map(str, range(3, 17)))
    assert f"  not {others}: rank 2 would hold no heads and no feed-forward columns\n" in text


def test_what_does_not_fit_ends_with_status_2_after_the_plan(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyggml.engine.device_facts.free_bytes", lambda device: 30 * 2**20)
    result = call(capsys, "plan", tiny("llama"), *TWO, "--parallel", 16, "--ctx", 4096, "--no-measure")
    assert result.status == 2
    assert result.out.count("does not fit") == 3
    assert result.err.startswith("pyggml plan: ctx = 4096 with 16 slots needs ")
    assert " on cpu; 31457280 are free; these fit: " in result.err
    document = json.loads(
        call(capsys, "plan", tiny("llama"), *TWO, "--parallel", 16, "--ctx", 4096, "--no-measure", "--json").out
    )
    assert document["refusal"] in result.err
    assert document["placement"] is None
    assert 0 < document["modes"][0]["largest_ctx"] < 4096


def test_fit_auto_shows_what_would_be_taken(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyggml.engine.device_facts.free_bytes", lambda device: 30 * 2**20)
    document = planned(
        capsys, tiny("llama"), *TWO, "--parallel", 16, "--ctx", 4096, "--no-measure", "--fit", "auto"
    )
    assert document["notes"][1].startswith("--fit auto took --device cpu")
    assert document["placement"]["n_ctx"] < 4096


def test_the_text_has_the_table_and_the_placement(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    text = call(capsys, "plan", tiny("llama"), *TWO, "--tp", 2, "--no-measure", "--ctx", 1024).out
    lines = [line.split() for line in text.splitlines()]
    assert ["device", "layers", "heads", "KV", "heads", "weights"] in [line[:6] for line in lines]
    assert sum(line[:2] == ["cpu", "0-1"] for line in lines) == 2
    assert "--tp can be (x how much the fullest rank has of an even part): 2 (x 1.00)" in text
    assert "1024" in next(line for line in lines if line[:4] == ["--device", "cpu,cpu", "--tp", "2"])


def test_the_text_has_the_measured_links_of_modes_with_several_ranks(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    links = LinkTimes(((16384, 5e-6), (2**23, 61e-6)), ((16384, 7e-6), (2**23, 2**23 / 40e9)))
    monkeypatch.setattr("pyggml.engine.outlook.link_times", lambda names, **_: links if names[1:] else LinkTimes())
    lines = call(capsys, "plan", tiny("llama"), *TWO).out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("between ranks"))
    words = " ".join(lines[head].split())
    assert words == "between ranks sum of 16.0 KiB sum of 8.0 MiB copy of 16.0 KiB copies of 8.0 MiB"
    shown = "5.0 us 61 us 7.0 us 40.0 GB/s".split()
    assert [line.split() for line in lines[head + 1 : head + 4]] == [
        ["--device", "cpu,cpu", "--tp", "2", *shown],
        ["--device", "cpu,cpu", "--layer-split", "2", *shown],
        [],
    ]


def test_links_are_told_where_they_were_measured(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*arguments: object) -> list[str]:
        return call(capsys, "plan", tiny("llama"), *arguments).out.partition("between ranks")[2].splitlines()[1:3]

    of_two = told("--device", "cpu,cpu,cpu,cpu", "--dp", 2, "--tp", 2)
    assert [row.split(":")[0] for row in of_two] == ["replica 0", "replica 1"]
    times = r"--tp 2" + r" +[\d.]+ (us|ms|s)" * (len(SUM_ELEMENTS) + 1) + r" +[\d.]+ GB/s$"
    assert all(re.search(times, row) for row in of_two)
    assert told(*TWO, "--tp", 2, "--no-measure") == told("--device", "cpu") == []


# Ways on paper


def test_ways_double_up_to_all_devices_and_name_only_what_must_be_named() -> None:
    names = [f"cuda:{i}" for i in range(6)]
    found = [o.text for o in ways(LoadOptions(), "cuda:3", names, are_default=True)]
    several = [f"--{option} {n}" for option in ("tp", "layer-split") for n in (2, 4, 6)]
    assert found == ["--device cuda:3", *several]
    assert [o.text for o in ways(LoadOptions(), "cpu", ["cpu"], are_default=False)] == ["--device cpu"]
    assert [o.text for o in ways(LoadOptions(), "cpu", [], are_default=True)] == ["--device cpu"]


def looked_at(model: ModelFacts, devices: list[DeviceFacts], **options: Any) -> Outlook:
    return outlook(model, LoadOptions(**options), devices, n_prompt=512, is_measured=True)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards of an H200's speed behind links of 10 us."""
    monkeypatch.setattr("pyggml.engine.measuring.device_speed", lambda *_, **__: Speed(2.5e12, 4e14, 20e-6))
    links = LinkTimes(((16384, 5e-6), (2**23, 60e-6)), ((16384, 10e-6), (2**23, 80e-6)))
    monkeypatch.setattr("pyggml.engine.outlook.link_times", lambda *_, **__: links)


@pytest.mark.usefixtures("speeds")
def test_the_fastest_that_fits_is_taken() -> None:
    model = facts(llama_8b())
    found = [
        looked_at(model, gpus(1), device="cuda:0"),
        looked_at(model, gpus(2), tp=2),
        looked_at(model, gpus(2), layer_split=2),
    ]
    one, tensor, split = (o.prediction.token_s for o in found if o.prediction and o.prediction.token_s)
    assert tensor < one < split
    assert fastest(found) is found[1]
    small = looked_at(model, gpus(2, 1), tp=2)
    assert not small.is_fitting and small.largest_ctx == 0
    assert fastest([small, found[0]]) is found[0]
    assert fastest([small]) is None


@pytest.mark.usefixtures("speeds")
def test_a_way_that_cannot_be_dealt_says_why() -> None:
    found = looked_at(facts(numbers()), gpus(3), layer_split=3)
    assert found.obstacle == "layer-split = 3; the model has 2 layers, so 2 devices at most"
    assert not found.is_fitting


@pytest.mark.usefixtures("speeds")
def test_heads_that_are_copied_shorten_the_largest_context() -> None:
    model = facts(replace(llama_8b(), n_head_kv=2, n_ctx_train=10**7))
    one, two, four = (looked_at(model, gpus(n, 20), **o) for n, o in ((1, {}), (2, {"tp": 2}), (4, {"tp": 4})))
    assert two.largest_ctx > 2 * one.largest_ctx
    assert four.largest_ctx < 1.3 * two.largest_ctx
    assert one.prediction is not None and one.prediction.mode is Mode.ONE


@pytest.mark.usefixtures("speeds")
@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ((0, 1), "SYS (the link between processors), NUMA nodes 0 and 1"),
        ((None, None), "SYS (the link between processors)"),
    ],
)
def test_each_pair_of_cards_has_its_class_and_nodes(
    nodes: tuple[int | None, int | None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [gg.Device(f"cuda:{i}", "a card", "gpu", f"0000:0{i}:00.0", 2**36, "cuda", None) for i in range(2)]
    seats = {d.bus_id: Seat(str(d.bus_id), node, (f"pci{i}",)) for i, (d, node) in enumerate(zip(cards, nodes))}
    monkeypatch.setattr("pyggml.engine.cli.plan_report.seat", seats.get)
    model = facts(llama_8b())
    found = [looked_at(model, gpus(1), device="cuda:0"), looked_at(model, gpus(2), tp=2)]
    report = PlanReport("a model", "m.gguf", model, 512, found, (), cards)
    assert f"cuda:0 and cuda:1: by PCIe {told}" in list(report.lines())
    assert report.advice.startswith("--tp 2 is fastest for a token: ")
    assert report.advice.endswith("; for many requests --dp 2, a copy on each GPU, needs no links")


# Measurements


def test_a_device_and_links_are_measured_once() -> None:
    before = device_speed.cache_info().currsize
    speed = device_speed("cpu", "q8_0", n_at_once=1, threads=1)
    assert device_speed("cpu", "q8_0", n_at_once=1, threads=1) is speed
    assert device_speed.cache_info().currsize <= before + 1
    assert speed.bandwidth > 1e8 and speed.flops > 1e8 and 0 < speed.layer_s < 0.1
    links = link_times(("cpu", "cpu"), threads=1)
    assert link_times(("cpu", "cpu"), threads=1) is links
    assert all(s > 0 for points in (links.reduce, links.copy) for _, s in points)
    assert link_times(("cpu",)) == LinkTimes()


def test_the_type_of_most_bytes_is_measured() -> None:
    model = facts(numbers(n_ff=1024))
    types = dict.fromkeys(model.types, gg.dtype("q8_0"))
    types |= {name: gg.dtype("q4_0") for name in types if "ffn" in name}
    assert main_type(replace(model, types=types)) == "q4_0"
    assert main_type(replace(model, types=dict.fromkeys(model.types, gg.dtype("f16")))) == "f16"


class _PretendedGroup:
    """Ranks on one device of some kind; a step takes `step_s` on a clock that nothing else moves."""

    def __init__(self, kind: str, step_s: float = 0.001) -> None:
        device = SimpleNamespace(kind=kind)
        self.backends = [SimpleNamespace(device=device, weight_buffer_type=lambda shape, kind: None)]
        self.step_s, self.now, self.n_steps = step_s, 0.0, 0

    def __enter__(self) -> _PretendedGroup:
        return self

    def __exit__(self, *exc_info: object) -> None:
        pass

    def compile(self, build: object) -> _PretendedGroup:
        return self

    def step(self) -> None:
        self.n_steps += 1
        self.now += self.step_s


@pytest.mark.parametrize(("step_s", "n_steps"), [(0.001, 1 + 20), (0.5, 1 + 3), (7.0, 1 + 1)])
def test_a_run_that_takes_long_is_not_repeated(
    step_s: float, n_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = _PretendedGroup("gpu", step_s)
    monkeypatch.setattr("pyggml.engine.measuring.time.perf_counter", lambda: group.now)
    assert best_seconds(cast(gg.Group, group), lambda g, rank: None) == pytest.approx(step_s)
    assert group.n_steps == n_steps


@pytest.mark.parametrize(("kind", "n_bytes"), [("cpu", 2**26), ("software", 2**26), ("igpu", 2**28), ("gpu", 2**28)])
def test_a_software_driver_is_measured_with_as_little_as_a_processor(
    kind: str, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Matrices(nullcontext):  # type: ignore[type-arg]
        n, n_bytes = 1, 1

        def __init__(self, backends: object, kind: object, n_bytes: int) -> None:
            super().__init__(self)
            asked.append(n_bytes)

    monkeypatch.setattr("pyggml.Group", lambda names, threads: _PretendedGroup(kind))
    monkeypatch.setattr("pyggml.engine.measuring._Matrices", Matrices)
    monkeypatch.setattr("pyggml.engine.measuring.best_seconds", lambda group, build: 1.0)
    device_speed.__wrapped__("a device")
    assert asked == [n_bytes]
