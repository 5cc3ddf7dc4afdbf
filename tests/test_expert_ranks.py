"""Products with experts on ranks: how many there are, and which experts each token is multiplied with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine import LLM

N_LAYER, N_EXPERT, N_USED, N_TOKENS = 2, 8, 3, 40
OPEN: dict[str, Any] = {"threads": 1, "ctx": 256, "parallel": 1, "prefix_cache": False}
Chosen = dict[tuple[int, int], list[np.ndarray]]


def chosen_by(path: Path, monkeypatch: pytest.MonkeyPatch, **mode: Any) -> Chosen:
    """The ids of each product with experts in the graphs that evaluate a prompt, by graph and rank."""
    graphs: dict[int, gg.RankGraph] = {}
    names: dict[int, list[str]] = defaultdict(list)
    multiply = gg.mul_mat_id

    def noted(table: gg.Tensor, rows: gg.Tensor, ids: gg.Tensor) -> gg.Tensor:
        graph = rows.graph
        assert isinstance(graph, gg.RankGraph)
        name = f"ids {len(names[id(graph)])}"
        graph.output(name, ids.cont())
        graphs[id(graph)] = graph
        names[id(graph)].append(name)
        return multiply(table, rows, ids)

    with monkeypatch.context() as patch:
        patch.setattr(gg, "mul_mat_id", noted)
        with LLM(path, **OPEN, **mode) as llm:
            llm.score([(7 * i) % 250 for i in range(N_TOKENS)], logits=True)
            return {
                (number, graph.rank): [graph.results[name].copy() for name in names[key]]
                for number, (key, graph) in enumerate(graphs.items())
                if not graph.closed and graph.results[names[key][0]].shape[0] == N_TOKENS
            }


@pytest.fixture
def model(tiny: Callable[..., Path]) -> Path:
    return tiny("qwen3moe", n_layer=N_LAYER, n_expert=N_EXPERT, n_expert_used=N_USED)


MODES: list[dict[str, Any]] = [
    {"device": "cpu"},
    {"device": "cpu,cpu", "tp": 2},
    {"device": "cpu,cpu,cpu", "tp": 3, "expert_split": "experts"},
    {"device": ",".join(["cpu"] * 8), "tp": 8, "expert_split": "experts"},
]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_a_rank_has_three_products_a_layer_and_no_expert_twice_for_a_token(
    mode: dict[str, Any], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = chosen_by(model, monkeypatch, **mode)
    assert {rank for _, rank in found} == set(range(mode.get("tp", 1)))
    n_shares = mode["tp"] if mode.get("expert_split") == "experts" else 1
    for products in found.values():
        assert len(products) == 3 * N_LAYER
        for ids in products:
            n_here = next(n for n in (N_EXPERT // n_shares, -(-N_EXPERT // n_shares)) if min(N_USED, n) == ids.shape[1])
            assert ids.min() >= 0 and ids.max() < n_here
            assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_experts_cut_inside_are_those_that_the_router_chose(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, *_ = chosen_by(model, monkeypatch, device="cpu").values()
    cut = chosen_by(model, monkeypatch, device="cpu,cpu", tp=2)
    assert len(cut) >= 2
    for products in cut.values():
        assert all(np.array_equal(ours, right) for ours, right in zip(products, alone, strict=True))
