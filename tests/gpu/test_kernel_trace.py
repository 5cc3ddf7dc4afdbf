"""Kernels as CUPTI sees them. Needs a CUDA device: `pytest tests/gpu`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine import LLM

CARDS = [device.name for device in gg.devices() if device.module == "cuda"]
pytestmark = pytest.mark.skipif(
    not CARDS, reason="no CUDA device; build with --backends cpu,cuda on a machine that has one"
)


@pytest.mark.parametrize("replay", [True, False])
def test_every_launch_is_counted(replay: bool) -> None:
    with (
        gg.Backend(CARDS[0]) as backend,
        gg.KernelTrace() as trace,
        gg.Graph(backend, replay=replay) as graph,
    ):
        x = graph.input("x", (1, 4096))
        w = graph.weight(np.ones((4096, 4096), np.float32), type="q8_0")
        for _ in range(3):
            x = gg.mul_mat(w, x)
        graph.output("y", x)
        feed = np.ones((1, 4096), np.float32)
        for _ in range(3):
            graph.run(x=feed)
        trace.restart()
        for _ in range(5):
            graph.run(x=feed)
        works = trace.end()
    products = [work for work in works if "mul_mat" in work.name]
    assert sum(work.count for work in products) == 15, works
    assert all(0 < work.seconds < 1 for work in works)


def test_a_trace_is_the_only_one() -> None:
    with gg.Backend(CARDS[0]), gg.KernelTrace():
        with pytest.raises(gg.DeviceError, match="a trace is on already"):
            gg.KernelTrace()


PLACES: dict[str, dict[str, Any]] = {
    "one": {"device": CARDS[0] if CARDS else ""},
    "tp": {"device": ",".join(CARDS[:2]), "tp": 2},
    "layers": {"device": ",".join(CARDS[:2]), "layer_split": 2},
}


@pytest.mark.parametrize("name", PLACES)
def test_a_steps_kernels_are_named(name: str, tiny: Callable[..., Path]) -> None:
    if name != "one" and len(CARDS) < 2:
        pytest.skip("one CUDA device; two are needed")
    with LLM(tiny("llama", quant="Q8_0"), ctx=512, parallel=2, **PLACES[name]) as llm:
        for step in ({"n_past": 20}, {"n_tokens": 64}, {"n_seq": 2}):
            found = llm.probe.profile(**step)
            assert (found.way, found.why) == ("kernels", "")
            assert any("mul_mat" in work.name or "gemm" in work.name for work in found.works), found.works
            print(name, step, f"{1e6 * found.step_s:.0f} us a step, {1e6 * found.total_s:.0f} us in kernels")
