"""What cards hold against the plan, for tiny models and a few layers of large ones. Needs CUDA devices."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from planned_bytes import check_bytes

import pyggml as gg

WRITER = Path(__file__).resolve().parents[2] / "bench" / "synthetic_model.py"
CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")
# Plans are for steps of 512 tokens; left to itself a card takes larger ones where it has room.
SMALL: dict[str, Any] = {"ctx": 1024, "parallel": 2, "batch": 512}
MODES: list[dict[str, Any]] = [{"device": "cuda:0"}, {"tp": 2}, {"layer_split": 2}]


def on_cards(mode: dict[str, Any]) -> dict[str, Any]:
    if mode.get("device") is None and len(CARDS) < 2:
        pytest.skip("fewer than two CUDA devices")
    return {"device": ",".join(CARDS[:2])} | mode


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize(
    ("arch", "options"),
    [("llama", {"quant": "Q8_0"}), ("llama", {"variant": "bias+tied"}), ("gemma3", {}), ("qwen3moe", {})],
    ids=str,
)
def test_tiny_models(arch: str, options: dict[str, Any], mode: dict[str, Any], tiny: Callable[..., Path]) -> None:
    check_bytes(tiny(arch, **options), **SMALL, **on_cards(mode))


@pytest.fixture(scope="module", params=["llama-8b q8_0", "llama-8b q4_k", "qwen3-30b-a3b q4_k"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "model.gguf"
    subprocess.run([sys.executable, WRITER, *request.param.split(), path, "--layers", "4"], check=True)
    yield path
    path.unlink()


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_layers_of_large_models(large: Path, mode: dict[str, Any]) -> None:
    check_bytes(large, **SMALL, **on_cards(mode))
