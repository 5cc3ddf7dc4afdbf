"""Routing over unlike ranks: all take rank 0's choice of experts, also where kernels would order a tie differently."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equality import evaluated
from stored_logits import PROMPT

import pyggml as gg
from pyggml.engine import LLM
from pyggml.engine.blocks import experts
from pyggml.engine.forward import Forward

OTHERS = ["cpu", *(d.name for d in gg.devices() if d.name == "cuda:0")]
PAIRS = [pair for other in OTHERS for pair in (f"{other},vulkan:1", f"vulkan:0,{other}")]
OPEN: dict[str, Any] = {"ctx": 256, "parallel": 1, "threads": 1, "cache_type_k": "f32", "cache_type_v": "f32"}
N_LAYER, N_USED = 2, 3


@pytest.fixture(scope="module")
def tied(tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of four pairs of experts, whose rows in the router are equal in layer 0 and differ by 1e-7 in layer 1.

    Three experts are used, so each token takes one pair whole and one expert of another.
    """
    path = tmp_path_factory.mktemp("tied") / "tied.gguf"
    dice = np.random.default_rng(3)
    with gg.GGUF(tiny("qwen3moe", n_expert_used=N_USED)) as file:
        writer = gg.GGUFWriter(path, file.metadata, file.metadata.types)
        for name, tensor in file.tensors.items():
            data = tensor.numpy().copy()
            if name.endswith("ffn_gate_inp.weight"):
                nudge = 1e-7 * dice.standard_normal(data[1::2].shape) if name.startswith("blk.1.") else 0.0
                data[1::2] = data[::2] * (1 + nudge)
            writer.add_tensor(name, data, tensor.type)
        writer.write()
    return path


@dataclass(frozen=True)
class Routed:
    """Logits of PROMPT; per rank and layer the experts that were taken, and those of the rank's own choice."""

    logits: np.ndarray
    taken: list[list[np.ndarray]]
    own: list[list[np.ndarray]]


def routed(path: Path, devices: str, **options: Any) -> Routed:
    """Evaluate with the choices of all ranks as outputs of their graphs."""
    route = experts.route

    def watched(f: Forward, logits: gg.Tensor, normalise: bool) -> tuple[gg.Tensor, gg.Tensor]:
        layer = len(f.graph.collectives)
        f.graph.output(f"own.{layer}", gg.top_k(gg.soft_max(logits), N_USED).cont())
        ids, weights = route(f, logits, normalise)
        f.graph.output(f"taken.{layer}", ids)
        return ids, weights

    with pytest.MonkeyPatch.context() as patch, LLM(path, device=devices, **OPEN, **options) as llm:
        patch.setattr(experts, "route", watched)
        logits = llm.score(PROMPT, logits=True)
        *_, (_, plan) = llm._runner._plans.items()
        results = [graph.copy_results() for graph in plan.graphs]
    taken, own = ([[r[n] for n in r if n.startswith(kind)] for r in results] for kind in ("taken.", "own."))
    return Routed(logits, taken, own)


def logits_with(path: Path, taken: list[np.ndarray]) -> np.ndarray:
    """What the CPU computes when each layer takes these experts."""
    layers = itertools.cycle(taken)

    def given(probabilities: gg.Tensor, n_used: int) -> gg.Tensor:
        return probabilities.graph.weight(np.resize(next(layers), (probabilities.shape[0], n_used)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experts.gg, "top_k", given)
        with LLM(path, device="cpu", **OPEN) as llm:
            return llm.score(PROMPT, logits=True)


@pytest.mark.parametrize("devices", PAIRS)
@pytest.mark.parametrize("expert_split", ["inside", "experts"])
def test_ties_are_decided_by_rank_0_for_all_ranks(devices: str, expert_split: str, tied: Path) -> None:
    found = routed(tied, devices, tp=2, tensor_split="1,1", expert_split=expert_split)
    first, second = found.taken
    assert len(first) == N_LAYER
    for ours, theirs, own in zip(first, second, found.own[0]):
        # Rank 0 may order a tie one way in a fused kernel and another in the node that only looks.
        assert np.array_equal(ours, theirs) and np.array_equal(np.sort(ours // 2), np.sort(own // 2))
    right = logits_with(tied, first).astype(np.float64)
    assert ((found.logits - right) ** 2).sum() <= 1e-4 * (right**2).sum()
    parted = [(np.sort(a) != np.sort(b)).any(1).sum() for a, b in zip(*found.own)]
    assert sum(parted) or "cuda" in devices, "the kernels order every tie alike: this run shows nothing"


@pytest.mark.parametrize("devices", PAIRS)
def test_ranks_without_experts_take_part_in_the_choice(devices: str, tiny: Callable[..., Path]) -> None:
    """A feed-forward of one block of Q4_K cannot be cut: one rank has all of it."""
    path = tiny("qwen3moe", quant="Q4_K", n_head=8, n_head_kv=4)
    right = evaluated(path, "cpu", cache_type="f32")
    ours = evaluated(path, devices, cache_type="f32", tp=2, tensor_split="1,1")
    assert ours.nmse(right) <= 5e-3 and ours.gap_at_parting(right) <= 0.3
