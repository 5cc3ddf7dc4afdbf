"""`pyggml doctor`: devices and links put to the test, what is wrong, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_calls import call

import pyggml as gg
from pyggml.engine.cli.doctor import environment
from pyggml.engine.cli.findings import findings
from pyggml.engine.examination import CopyTest, Examination
from pyggml.engine.measuring import SUM_ELEMENTS, Speed
from pyggml.engine.topology import Seat, between, seat
from pyggml.transport import NAMES as TRANSPORTS

TWO = ("--device", "cpu,cpu", "--threads", 1)
GIB = 2**30


def examined(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> dict[str, Any]:
    result = call(capsys, "doctor", *arguments, "--json")
    assert result.status == status, result.err
    document: dict[str, Any] = json.loads(result.out)
    return document


def test_devices_links_and_build_are_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = examined(capsys, *TWO)
    (cpu,) = (device for device in document["devices"] if device["name"] == "cpu")
    assert min(cpu["speed"]["bandwidth"], cpu["speed"]["flops"], cpu["speed"]["layer_s"]) > 0
    assert 0 < cpu["memory_free_bytes"] <= cpu["memory_total_bytes"]
    assert [(c["source"], c["target"], c["problem"]) for c in document["copies"]] == [(0, 1, ""), (1, 0, "")]
    assert all(c["bytes_per_s"] > 0 and 0 < c["small_s"] < c["large_s"] for c in document["copies"])
    assert list(map(int, document["sums"]["host"])) == list(SUM_ELEMENTS)
    assert "cpu" in document["build"]["backends"]
    assert document["transports"]["chosen"][0]["name"] == "host"


def test_the_text_has_a_line_for_each_copy_and_each_transport(capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "doctor", *TWO)
    lines = [line.split() for line in result.out.splitlines()]
    assert (result.status, result.err) == (0, "examining cpu, cpu ...\n")
    assert sum(line[1:2] == ["->"] and line[5] == "ok" for line in lines) == 2
    assert ["transport", *map(str, SUM_ELEMENTS)] in lines
    assert [line[0] for line in lines if line and line[0] in TRANSPORTS] == list(TRANSPORTS)


@pytest.mark.parametrize("name", ["doctor.json", "doctor.md"])
def test_the_report_holds_what_is_printed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    result = call(capsys, "doctor", *TWO, "--report", path)
    if name.endswith(".json"):
        assert json.loads(path.read_text())["ranks"] == ["cpu", "cpu"]
    else:
        assert path.read_text() == f"# pyggml doctor\n\n```text\n{result.out}```\n"


def test_a_report_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "doctor", "--device", "cpu", "--report", tmp_path / "none" / "r.md")
    assert result.status == 2
    assert "--report" in result.err and "No such file" in result.err


def test_without_gpus_the_cpu_is_examined_twice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gg, "discrete_gpus", list)
    monkeypatch.setattr("pyggml.engine.cli.doctor.examine", lambda names, **_: Examination(names))
    assert examined(capsys)["ranks"] == ["cpu", "cpu"]


@pytest.mark.parametrize("names", ["cuda:77", "cpu,,cpu"])
def test_unknown_devices_are_refused(names: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "doctor", "--device", names)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("pyggml doctor: --device: no device ")


def test_copies_that_arrive_wrong_are_found_by_content(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lying(group: gg.Group, source: int, target: int, data: np.ndarray) -> np.ndarray:
        return np.concatenate([data[:-1], [-1]]) if (source, len(data)) == (1, 2**20 + 3) else data

    monkeypatch.setattr("pyggml.engine.examination.copied", lying)
    document = examined(capsys, *TWO, status=1)
    assert [copy["problem"] for copy in document["copies"]] == ["", "1 of 1048579 numbers arrive wrong"]
    assert any(line.startswith("cpu to cpu: 1 of 1048579 numbers arrive wrong: ") for line in document["findings"])


def test_a_device_that_fails_is_a_finding_and_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str, **_: Any) -> Speed:
        raise gg.DeviceError(f"device {name} cannot be opened: it is broken")

    monkeypatch.setattr("pyggml.engine.examination.device_speed", fail)
    document = examined(capsys, *TWO, status=1)
    assert document["findings"] == ["cpu does not work: device cpu cannot be opened: it is broken"]
    assert document["copies"] == []


def test_what_may_be_secret_is_not_reported() -> None:
    environ = {
        "PYGGML_CTX": "8192", "PYGGML_API_KEY": "x", "CUDA_VISIBLE_DEVICES": "0", "NCCL_P2P_DISABLE": "1", "HOME": "/x",
        "GGML_TOKEN": "y", "PYGGML_SECRET_NAME": "z",
    }  # fmt: skip
    assert environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NCCL_P2P_DISABLE": "1",
        "PYGGML_CTX": "8192",
    }


# Findings


def card(i: int) -> gg.Device:
    return gg.Device(f"cuda:{i}", "a card", "gpu", f"0000:0{i}:00.0", 80 * GIB, "cuda", None)


def placed(i: int, node: int | None = 0, width: int = 16) -> Seat:
    return Seat(f"0000:0{i}:00.0", node, ("pci0000:00", f"0000:0{i}:00.0"), width, 16)


CARDS = [card(0), card(1)]
SEATS: dict[str, Seat | None] = {"cuda:0": placed(0), "cuda:1": placed(1)}
FREE = {"cuda:0": 79 * GIB, "cuda:1": 79 * GIB}
NAMES = ["cuda:0", "cuda:1"]


def row(name: str, reason: str) -> dict[str, Any]:
    return {"name": name, "passed": False, "reason": reason, "seconds": {}}


def transports(*rows: dict[str, Any], **pair: Any) -> Examination:
    found = Examination(list(NAMES))
    found.transports = {"transports": list(rows), "pairs": [pair] if pair else []}
    return found


FINDINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"free": FREE | {"cuda:1": 10 * GIB}}, ["cuda:1 has 10.0 of 80.0 GiB free: end what holds the rest"]),
    (
        {"seats": SEATS | {"cuda:0": placed(0, width=8)}},
        ["cuda:0 runs on 8 of its 16 PCIe lanes: seat the card anew"],
    ),
    (
        {"seats": SEATS | {"cuda:1": placed(1, node=1)}},
        ["cuda:0 and cuda:1 are on NUMA nodes 0 and 1: what they exchange through host memory"],
    ),
    ({"seats": SEATS | {"cuda:1": placed(1, node=None)}}, []),
    ({"seats": {}}, []),
    (
        {"examined": Examination(NAMES, faults={"cuda:0": "it is broken"})},
        ["cuda:0 does not work: it is broken"],
    ),
    (
        {"examined": Examination(NAMES, group_fault="no memory")},
        ["the devices do not work together (no memory): use one of these devices alone"],
    ),
    (
        {"examined": Examination(NAMES, copies=[CopyTest(1, 0, "3 of 9 numbers arrive wrong")])},
        ["cuda:1 to cuda:0: 3 of 9 numbers arrive wrong: do not use them together"],
    ),
    (
        {"examined": transports(source=0, target=1, problem="stores of 64 bytes: 8 bytes are wrong")},
        ["cuda:0 cannot reach cuda:1 directly (stores of 64 bytes: 8 bytes are wrong): nothing to do"],
    ),
    ({"examined": transports(source=0, target=1, problem="")}, []),
    (
        {"examined": transports(row("nccl", "NCCL is not installed: pip install nvidia-nccl-cu13 (or -cu12)"))},
        ["transport nccl is not used: NCCL is not installed: pip install"],
    ),
    ({"examined": transports(row("push", "rank 0 is on cpu, which is no CUDA card"))}, []),
    ({"examined": transports(row("push", "ranks 0 and 1 share a card"))}, []),
    ({"examined": transports(row("nccl-shm", "not needed: nccl works with peer access"))}, []),
]


@pytest.mark.parametrize(("changed", "expected"), FINDINGS, ids=range(len(FINDINGS)))
def test_each_finding_says_what_to_do(changed: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    given: dict[str, Any] = {"seats": SEATS, "free": FREE, "examined": Examination(NAMES)} | changed
    found = findings(CARDS, given["seats"], given["free"], given["examined"], root=tmp_path)
    assert len(found) == len(expected)
    assert all(str(finding).startswith(start) for finding, start in zip(found, expected))


@pytest.mark.parametrize(("n_cards", "n_found"), [(1, 0), (2, 1)])
def test_an_iommu_matters_to_several_cards(n_cards: int, n_found: int, tmp_path: Path) -> None:
    (tmp_path / "sys/class/iommu/dmar0").mkdir(parents=True)
    found = findings(CARDS[:n_cards], SEATS, FREE, Examination(NAMES), root=tmp_path)
    assert len(found) == n_found


# Topology


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    """Adds a PCI device behind these bridges to a made-up sysfs."""

    def add(address: str, *bridges: str, node: int = 0, width: int = 16) -> Path:
        folder = tmp_path.joinpath("sys/devices", *bridges, address)
        folder.mkdir(parents=True)
        files = {"numa_node": node, "current_link_width": width, "max_link_width": 16}
        for name, value in files.items():
            (folder / name).write_text(f"{value}\n")
        (folder / "current_link_speed").write_text("16.0 GT/s PCIe\n")
        link = tmp_path / "sys/bus/pci/devices" / address
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder)
        return tmp_path

    return add


ROOT, OTHER = "pci0000:00", "pci0000:80"
SWITCH = (ROOT, "0000:00:01.0", "0000:01:00.0")


@pytest.mark.parametrize(
    ("a", "b", "nodes", "expected"),
    [
        ((*SWITCH, "0000:02:00.0"), (*SWITCH, "0000:02:01.0"), (0, 0), "PIX"),
        ((*SWITCH, "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"), (*SWITCH, "0000:02:01.0"), (0, 0), "PXB"),
        ((ROOT, "0000:00:01.0"), (ROOT, "0000:00:02.0"), (0, 0), "PHB"),
        ((ROOT, "0000:00:01.0"), (OTHER, "0000:80:01.0"), (0, 0), "NODE"),
        ((ROOT, "0000:00:01.0"), (OTHER, "0000:80:01.0"), (0, 1), "SYS"),
        ((ROOT, "0000:00:01.0"), (OTHER, "0000:80:01.0"), (-1, -1), "SYS"),
    ],
    ids=["one switch", "two switches", "host bridge", "node", "processors", "unknown nodes"],
)
def test_what_lies_between_two_cards(
    a: tuple[str, ...], b: tuple[str, ...], nodes: tuple[int, int], expected: str, machine: Callable[..., Path]
) -> None:
    machine("0000:0a:00.0", *a, node=nodes[0])
    root = machine("0000:0b:00.0", *b, node=nodes[1])
    first, second = seat("0000:0A:00.0", root), seat("0000:0b:00.0", root)
    assert between(first, second) == between(second, first) == expected
    assert between(first, first) == "same"


def test_a_seat_has_lanes_speed_and_node(machine: Callable[..., Path]) -> None:
    root = machine("0000:0a:00.0", ROOT, "0000:00:01.0", node=1, width=4)
    found = seat("0000:0a:00.0-v1", root)
    assert found is not None
    assert (found.numa_node, found.width, found.max_width, found.speed) == (1, 4, 16, "16.0 GT/s PCIe")
    assert found.max_speed is None
    assert seat(None, root) is None and seat("0000:0f:00.0", root) is None
    assert between(found, None) == ""


@pytest.mark.parametrize("words", [[], ["--retest"]], ids=str)
def test_retest_reaches_the_group(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    original = gg.Group.__init__

    def noted(self: gg.Group, *arguments: Any, retest: bool = False, **options: Any) -> None:
        asked.append(retest)
        original(self, *arguments, **options)

    monkeypatch.setattr(gg.Group, "__init__", noted)
    assert call(capsys, "doctor", "--device", "cpu,cpu", "--threads", 1, *words).status == 0
    assert any(asked) == bool(words)
