"""`bench/compare_nodes.py` on the CPU: nothing differs where nothing does, and what differs is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from backend_hook import Comparison, Recording
from graph_nodes import RankRun

import pyggml as gg

PROGRAM = Path(__file__).resolve().parent.parent / "bench/compare_nodes.py"
N, HEADS, WIDTH = 8, 2, 16
LAYERS, SCALE = ("a", "b"), 0.25


def compared(device: str, *options: str) -> tuple[str, dict[str, Any]]:
    """What the program prints, and its facts."""
    command = [sys.executable, str(PROGRAM), device, "smollm3", *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == facts["differs"], done.stdout + done.stderr
    return done.stdout, facts


def test_the_cpu_equals_itself() -> None:
    said, facts = compared("cpu")
    assert "no node differs of" in said and "run 0: worst NMSE 0.0e+00" in said
    assert not facts["differs"] and facts["plain_nmse"] == 0 and facts["worst_nmse"] == 0
    assert facts["n_runs"] == 1 and facts["n_compared"] > 70 and facts["n_unpaired"] == 0 and not facts["error"]


def test_a_changed_node_is_named_and_its_readers_are_not() -> None:
    said, facts = compared("cpu", "--no-plain", "--perturb", "21")
    assert facts["differs"] and facts["n_differing"] == 1
    assert facts["first"]["node"] == 21 and facts["first"]["operation"] == "MUL_MAT" and facts["first"]["is_node"]
    assert facts["first"]["nmse"] == pytest.approx(1e-4, rel=1e-3)
    assert said.index("  NODE #21 ") < said.index("run 0: worst NMSE 1.0e-04, at #21 MUL_MAT; 1 of")
    assert "blk.0.attn_output.weight" in said


def test_without_feeding_an_error_goes_on() -> None:
    _, facts = compared("cpu", "--no-plain", "--perturb", "21", "--no-feed", "--tolerance", "1e-9")
    assert facts["first"]["node"] == 21 and facts["n_differing"] > 10


def test_two_ranks_equal_two_ranks() -> None:
    _, facts = compared("cpu,cpu", "--tp", "2", "--no-plain", "--each", "3")
    assert not facts["differs"] and facts["tp"] == 2 and facts["n_compared"] > 140


def weights(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def attention(g: gg.Graph, x: gg.Tensor, layer: str, scale: float, *, is_flash: bool) -> gg.Tensor:
    """The other way has V's product before K's, and attention in several nodes."""
    size, heads = HEADS * WIDTH, {}
    for name in "qkv" if is_flash else "vqk":
        weight = g.weight(weights(ord(name), size, size), name=f"{layer}.attn_{name}.weight")
        product = gg.mul_mat(weight, x)
        g.output(f"{layer}.{name}", product)
        heads[name] = product.reshape(1, N, HEADS, WIDTH).permute(0, 2, 1, 3)
    q, k, v = (heads[name] for name in "qkv")
    if is_flash:
        made = gg.flash_attn(q, k, v, None, scale=scale)
    else:
        chances = gg.soft_max(gg.mul_mat(k, q) * scale)
        made = gg.mul_mat(v.permute(0, 1, 3, 2).cont(), chances).permute(0, 2, 1, 3).cont()
    output = g.weight(weights(0, size, size) / size, name=f"{layer}.attn_output.weight")
    return gg.mul_mat(output, made.reshape(N, size)) + x


def compared_attention(scale: float) -> RankRun:
    """Two layers of flash attention, and then the other way with another scale."""
    right = Recording()
    with gg.Backend("cpu", threads=1) as backend:
        for side in (right, other := Comparison(right, tolerance=1e-5)):
            with gg.Graph(backend) as g:
                x = g.input("x", (N, HEADS * WIDTH))
                for layer in LAYERS:
                    x = attention(g, x, layer, SCALE if side is right else scale, is_flash=side is right)
                g.output("y", x)
                with side.caught():
                    g.run(x=weights(1, N, HEADS * WIDTH))
            assert not side.fault, side.fault
    ((run,),) = other.runs
    return run


def test_nodes_are_paired_around_parts_that_differ() -> None:
    run = compared_attention(SCALE)
    read = [
        [node.sources[0].text.split("'")[1] for node in (found.node, found.node.twin) if node is not None]
        for found in run.findings
        if found.node.operation == "MUL_MAT"
    ]
    assert read == [
        [f"{layer}.attn_{name}.weight"] * 2 for layer in LAYERS for name in ("v", "q", "k", "output")
    ]
    assert [node.operation for node in run.only_there] == ["FLASH_ATTN_EXT"] * len(LAYERS)
    assert {"MUL_MAT", "SOFT_MAX"} <= {node.operation for node in run.only_here}
    assert not any(found.differs for found in run.findings)


def test_what_only_one_side_has_is_to_blame_for_what_its_readers_find() -> None:
    differing = [found for found in compared_attention(2 * SCALE).findings if found.differs]
    for found, layer in zip(differing, LAYERS, strict=True):
        assert f"{layer}.attn_output.weight" in found.sources[0].text and not found.is_bad
        assert found.sources[1].alarm == "differs, made by nodes only here"
