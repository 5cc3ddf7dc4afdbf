"""Every family on CUDA against the CPU, and over two cards against one. Needs a CUDA device: `pytest tests/gpu`.

Shapes of all families with float weights stay within 1e-4, quantised ones within 5e-3, or four times the CPU's own
distance from exact arithmetic where that is more: a router may choose another expert for a rounding. So float weights
with experts may be four times as far off as the CPU itself comes when its weights are rounded as TF32 rounds them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_modes import nmse
from stored_logits import PROMPT
from tiny_families import RECIPES, write_family

import pyggml as gg
from pyggml.engine import LLM

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(
    not CARDS, reason="no CUDA device; build with --backends cpu,cuda on a machine that has one"
)
two_cards = pytest.mark.skipif(len(CARDS) < 2, reason="fewer than two CUDA devices")

FLOATS = ("F32", "F16", "BF16")
SHAPES = [(arch, variant) for arch, recipes in RECIPES.items() for variant in recipes]
# Weight type and cache type of each run: all types with the base shape, float32 with the others.
RUNS = [
    *((arch, "", quant, "f16") for arch in RECIPES for quant in (*FLOATS, "Q8_0")),
    *(
        (arch, variant, "F32", cache)
        for arch, variant in SHAPES
        for cache in ("f32", "f16")
        if variant or cache == "f32"
    ),
]


def opened(path: Path, devices: list[str], cache: str, **mode: Any) -> LLM:
    names = ",".join(devices)
    return LLM(
        path, device=names, threads=4, ctx=256, parallel=2, cache_type_k=cache, cache_type_v=cache, **mode
    )


def logits(path: Path, device: str, cache: str) -> list[np.ndarray]:
    """All at once and token by token."""
    with opened(path, [device], cache) as llm:
        return [llm.score(PROMPT, logits=True, chunk=chunk) for chunk in (None, 1)]


def own_distance(path: Path, right: np.ndarray, folder: Path) -> float:
    """How far the CPU is from the same weights in float32 with a float32 cache."""
    copy = folder / "exact.gguf"
    with gg.GGUF(path) as file:
        writer = gg.GGUFWriter(copy, file.metadata, file.metadata.types)
        for tensor in file.tensors.values():
            writer.add_tensor(tensor.name, tensor.numpy(), "f32")
        writer.write()
    return nmse(right, logits(copy, "cpu", "f32")[0])


def has_experts(path: Path) -> bool:
    with gg.GGUF(path) as file:
        return any("_exps" in name for name in file)


def own_unrest(path: Path, cache: str, right: np.ndarray, folder: Path) -> float:
    """How far the CPU comes from itself when weights change by a part in a thousand; cards round both factors."""
    worst = 0.0
    for seed in range(6):
        dice = np.random.default_rng(seed)
        copy = folder / "near.gguf"
        with gg.GGUF(path) as file:
            writer = gg.GGUFWriter(copy, file.metadata, file.metadata.types)
            for tensor in file.tensors.values():
                values = tensor.numpy().astype(np.float32)
                noise = 1 + 2.0**-10 * dice.uniform(-1, 1, values.shape).astype(np.float32)
                writer.add_tensor(tensor.name, values * noise if values.ndim > 1 else values, "f32")
            writer.write()
        worst = max(worst, nmse(logits(copy, "cpu", cache)[0], right))
    return worst


@pytest.mark.parametrize(("arch", "variant", "quant", "cache"), RUNS)
def test_cuda_logits_equal_the_cpus(arch: str, variant: str, quant: str, cache: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch, quant=quant, variant=variant)
    right = logits(path, "cpu", cache)
    found = logits(path, CARDS[0], cache)
    errors = [nmse(ours, theirs) for ours, theirs in zip(found, right)]
    print(f"{arch} {variant} {quant} {cache}: {errors[0]:.1e} at once, {errors[1]:.1e} step by step")
    is_exact = quant in FLOATS and "MXFP4" not in {kind for _, kind in RECIPES[arch][variant].types}
    limit = 1e-4 if is_exact else 5e-3
    if max(errors) > limit and not is_exact:
        limit = 4 * own_distance(path, right[0], tmp_path)
    if max(errors) > limit and is_exact and has_experts(path):
        limit = 4 * own_unrest(path, cache, right[0], tmp_path)
        print(f"  the CPU's own unrest: {limit / 4:.1e}")
    by_position = [[f"{nmse(*row):.0e}" for row in zip(ours, theirs)] for ours, theirs in zip(found, right)]
    assert max(errors) <= limit, by_position


@two_cards
@pytest.mark.parametrize("mode", ["tp", "layer_split"])
@pytest.mark.parametrize(("arch", "variant"), SHAPES)
def test_two_cards_equal_one(arch: str, variant: str, mode: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch, variant=variant)
    with opened(path, CARDS[:1], "f16") as llm:
        right, obstacle = llm.score(PROMPT, logits=True), llm.model.hparams.split_obstacle
    if mode == "layer_split" and obstacle:
        pytest.skip(obstacle)
    with opened(path, CARDS[:2], "f16", **{mode: 2}) as llm:
        error = nmse(llm.score(PROMPT, logits=True), right)
    print(f"{arch} {variant} {mode} 2: {error:.1e}")
    assert error <= 1e-4


@pytest.mark.parametrize("arch", RECIPES)
def test_recorded_decoding_gives_the_answers_of_steps_by_step_scoring(arch: str, tmp_path: Path) -> None:
    """Greedy tokens of decoding are those that scoring the same text prefers, except in near-ties."""
    path = write_family(tmp_path / "model.gguf", arch)
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}
    with opened(path, CARDS[:1], "f16") as llm:
        (answer,) = llm.generate([list(PROMPT)], **asked)
    with opened(path, CARDS[:1], "f16", cuda_graphs=False) as llm:
        rows = llm.score([*PROMPT, *answer.ids], logits=True, chunk=1)[len(PROMPT) - 1 : -1]
        rows[:, sorted(llm.model.tokenizer.stop_ids)] = rows.min()  # ignore_eos never takes them
    best = np.sort(rows, axis=-1)
    chosen = rows[np.arange(len(answer.ids)), answer.ids]
    assert (chosen >= best[:, -1] - 1e-2 * np.abs(best).max()).all()
