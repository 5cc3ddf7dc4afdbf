"""A model with our own kernels and with ggml's alone, against the same weights in float32: logits of decode steps.

Kernels that start before others have ended show their faults only where layers follow one another and last.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine import LLM

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")
ROOT = Path(__file__).resolve().parents[2]
WRITER, EXAMPLE = ROOT / "bench" / "synthetic_model.py", ROOT / "examples" / "requantize_gguf.py"
IDS = list(range(100, 140))
MODES = [
    pytest.param(("cuda:0", {}), id="one"),
    pytest.param(("cuda:0,cuda:1", {"tp": 2}), id="tp 2", marks=pytest.mark.skipif(len(CARDS) < 2, reason="one card")),
]  # fmt: skip


def logits(path: Path, device: str = "cuda:0", **options: object) -> np.ndarray:
    with LLM(path, ctx=256, parallel=1, prefix_cache=False, device=device, **options) as llm:
        return llm.score(IDS, logits=True, chunk=1).astype(np.float64)


def error(found: np.ndarray, right: np.ndarray) -> float:
    """The mean over the positions of NMSE."""
    centred = right - right.mean(1, keepdims=True)
    return float((((found - right) ** 2).sum(1) / (centred**2).sum(1)).mean())


def do(script: Path, *arguments: str | Path) -> None:
    subprocess.run([sys.executable, script, *arguments], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module", params=["q8_0", "q4_k"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, np.ndarray, float]]:
    """A file, the logits of its weights in float32, and how far ggml's kernels are from them."""
    folder = tmp_path_factory.mktemp("model")
    path, exact = folder / "model.gguf", folder / "exact.gguf"
    do(WRITER, "llama-1b", request.param, path, "--layers", "8")
    do(EXAMPLE, path, exact, "--type", "f32", "--threads", "8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYGGML_FUSED", "0")
        right = logits(exact)
        exact.unlink()
        yield path, right, error(logits(path), right)
    path.unlink()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("graphs", ["0", "1"])
@pytest.mark.parametrize("fused", ["1", "all"])
def test_decode_steps_are_as_near_to_float32_as_with_ggmls_kernels(
    model: tuple[Path, np.ndarray, float],
    mode: tuple[str, dict[str, int]],
    graphs: str,
    fused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, right, theirs = model
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", graphs)
    monkeypatch.setenv("PYGGML_FUSED", fused)
    ours = error(logits(path, mode[0], **mode[1]), right)
    print(f"{path.name} {mode} graphs {graphs} fused {fused}: ours {ours:.2e}, ggml's {theirs:.2e} from float32")
    assert ours != theirs, "no kernel of ours was at work"
    assert ours <= 1.25 * theirs


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("experts") / "model.gguf"
    command = [sys.executable, WRITER, "qwen3-30b-a3b", "q4_k", path, "--layers", "4"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    yield path
    path.unlink()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_chosen_experts_are_those_of_ggmls_kernels(
    experts: Path, mode: tuple[str, dict[str, int]], graphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few tokens are so near the edge between two experts that a rounding changes the choice; a fault changes all."""
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", graphs)
    found = {}
    without, with_experts = "products,columns,router", "products,columns,router,experts"
    for setting in ("0", without, with_experts):
        monkeypatch.setenv("PYGGML_FUSED", setting)
        found[setting] = logits(experts, mode[0], **mode[1])
    usual, ours = (error(found[setting], found["0"]) for setting in (without, with_experts))
    print(f"{mode} graphs {graphs}: with experts {ours:.2e}, without {usual:.2e} from ggml's kernels")
    assert ours != usual, "no kernel of experts was at work"
    assert ours <= 2e-2
