"""`pyggml devices`, and the loud line about a GPU that stays unused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call

from pyggml import Device, ModuleProblem
from pyggml.engine.cli.devices import why_not
from pyggml.engine.cli.unused_gpus import unused_gpus

CPU = Device("cpu", "a processor", "cpu", None, 2**34, "cpu", None)
CUDA = [Device(f"cuda:{i}", "a card", "gpu", f"0000:0{i}:00.0", 2**34, "cuda", None) for i in range(2)]
TWIN = Device("vulkan:0", "a card", "gpu", "0000:00:00.0", 2**34, "vulkan", None)
SOFTWARE = Device("vulkan:1", "llvmpipe", "software", None, 2**34, "vulkan", None)
NO_CUBLAS = ModuleProblem(
    "cuda", "libcublas.so.12: cannot open shared object file: No such file or directory"
)
NO_LIBCUDA = ModuleProblem("cuda", "libcuda.so.1: cannot open shared object file: No such file or directory")


def machine(root: Path, *, card: str = "", driver: bool = False, display_class: str = "0x030000") -> Path:
    """A made-up file system of a machine with one card."""
    if card:
        folder = root / "sys/bus/pci/devices/0000:01:00.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(card + "\n")
        (folder / "class").write_text(display_class + "\n")
    if driver:
        (root / "dev").mkdir()
        (root / "dev/nvidiactl").touch()
    return root


NVIDIA, AMD = {"card": "0x10de", "driver": True}, {"card": "0x1002"}
UNUSED: list[tuple[dict[str, Any], Sequence[Device], Sequence[ModuleProblem], dict[str, Any], str]] = [
    (NVIDIA, [CPU, *CUDA], [], {"backends": ["cpu", "cuda"]}, ""),
    (NVIDIA, [CPU], [], {"backends": ["cpu"]}, "NVIDIA GPU not usable: this build has no CUDA; build it with: "
     "python build_ggml.py --backends cpu,cuda --install"),
    (NVIDIA, [CPU], [], {"backends": ["cpu"], "warnings": ["NVIDIA GPU not usable: no nvcc"]}, "no nvcc"),
    (NVIDIA, [CPU], [NO_CUBLAS], {"backends": ["cpu", "cuda"]}, "pip install nvidia-cublas-cu12"),
    (NVIDIA, [CPU], [NO_LIBCUDA], {"backends": ["cpu", "cuda"]}, "sudo apt install libcuda1"),
    (NVIDIA, [CPU], [ModuleProblem("cuda", "undefined symbol: x")], {}, "undefined symbol: x; build again with: "),
    (NVIDIA, [CPU], [], {"backends": ["cpu", "cuda"]}, "shows no device to this process; see what nvidia-smi says"),
    ({"card": "0x10de"}, [CPU], [NO_LIBCUDA], {"backends": ["cpu", "cuda"]}, "its driver is not loaded"),
    ({"driver": True}, [CPU], [], {"backends": ["cpu"]}, "NVIDIA GPU not usable"),
    ({"card": "0x10de", "display_class": "0x040300"}, [CPU], [], {"backends": ["cpu"]}, ""),
    (AMD, [CPU], [], {"backends": ["cpu"]}, "AMD GPU not usable: this build has no Vulkan; build it with: "),
    (AMD, [CPU, SOFTWARE], [], {"backends": ["cpu", "vulkan"]}, "sudo apt install mesa-vulkan-drivers"),
    (AMD, [CPU, TWIN], [], {"backends": ["cpu", "vulkan"]}, ""),
    ({}, [CPU], [NO_LIBCUDA], {"backends": ["cpu", "cuda"]}, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("shown", "devices", "problems", "facts", "expected"), UNUSED, ids=range(len(UNUSED))
)
def test_an_unused_gpu_is_one_line_with_the_remedy(
    shown: dict[str, Any], devices: Sequence[Device], problems: Sequence[ModuleProblem], facts: dict[str, Any],
    expected: str, tmp_path: Path,
) -> None:  # fmt: skip
    lines = unused_gpus(devices, problems, facts, root=machine(tmp_path, **shown), environ={})
    assert len(lines) == (1 if expected else 0)
    assert expected in "".join(lines)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_cards_hidden_on_purpose_are_not_missed(hidden: str, tmp_path: Path) -> None:
    root = machine(tmp_path, card="0x10de", driver=True)
    assert unused_gpus([CPU], [], {}, root=root, environ={"CUDA_VISIBLE_DEVICES": hidden}) == []


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (CUDA[0], ""),
        (CUDA[1], "less free memory than cuda:0"),
        (TWIN, "same card as cuda:0"),
        (SOFTWARE, "software renderer"),
        (CPU, "there is a GPU"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_why_a_device_is_not_the_default(device: Device, expected: str) -> None:
    assert why_not(device, CUDA[0], [CPU, *CUDA, TWIN, SOFTWARE]) == expected


def test_the_list_has_one_default(capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "devices", "--json")
    document = json.loads(result.out)
    assert result.status == 0
    assert sum(device["is_default"] for device in document["devices"]) == 1
    (cpu,) = (device for device in document["devices"] if device["name"] == "cpu")
    assert 0 < cpu["memory_free_bytes"] <= cpu["memory_total_bytes"]
    assert "cpu" in document["build"]["backends"]


def test_the_table_names_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = call(capsys, "devices").out.splitlines()
    assert header.split() == ["name", "kind", "description", "bus", "id", "free", "total"]
    assert sum(row.endswith("  default") for row in rows) == 1
