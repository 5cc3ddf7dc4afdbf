"""A model with our own kernels against the same with ggml's alone: logits of decode steps, recorded and not.

Kernels that start before others have ended show their faults only where layers follow one another and last.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from synthetic_model import write

import pyggml as gg
from pyggml.engine import LLM

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")
IDS = list(range(100, 140))
# The activations are rounded alike; where one of the cache falls to the other side, all that follows differs a little.
LIMIT = 1e-3
TWO_CARDS = pytest.mark.skipif(len(CARDS) < 2, reason="one card")
MODES = [
    pytest.param({"device": CARDS[:1]}, id="one"),
    pytest.param({"device": CARDS[:2], "tp": 2}, id="tp 2", marks=TWO_CARDS),
]  # fmt: skip


@pytest.fixture(scope="module", params=["q8_0", "q4_k"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    write("llama-1b", request.param, str(path))
    yield path
    path.unlink()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("graphs", ["0", "1"])
def test_decode_steps_give_the_logits_of_ggmls_kernels(
    model: Path, mode: dict[str, object], graphs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", graphs)

    def logits(fused: str) -> np.ndarray:
        monkeypatch.setenv("PYGGML_FUSED", fused)
        options = {**mode, "device": ",".join(mode["device"])}
        with LLM(model, ctx=256, parallel=1, prefix_cache=False, **options) as llm:
            return llm.score(IDS, logits=True, chunk=1).astype(np.float64)

    right, ours = logits("0"), logits("1")
    error = ((ours - right) ** 2).sum(1) / ((right - right.mean(1, keepdims=True)) ** 2).sum(1)
    print(f"{mode} graphs {graphs}: {error.max():.1e} at most, {error.mean():.1e} on average")
    assert np.any(ours != right), "no kernel of ours was at work"
    assert error.max() <= LIMIT
