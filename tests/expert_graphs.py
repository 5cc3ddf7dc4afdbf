"""Graphs of chosen experts, which are computed in two launches."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from graphs import random

import pyggml as gg
from pyggml.engine.blocks import experts


@dataclass(frozen=True)
class Experts:
    """`n` tokens of `k` values, each with `used` of `n_experts` experts of `n_ff` hidden values."""

    kind: str = "swiglu"  # or geglu; with up-first, residual
    n: int = 1
    used: int = 4
    k: int = 512
    n_ff: int = 256
    type: str = "q4_k"
    down: str = ""
    n_experts: int = 8

    def __str__(self) -> str:
        return f"{self.kind}-{self.type}{self.down}-{self.used}x{self.n_ff}x{self.k}-{self.n}"

    def matrices(self, g: gg.Graph) -> dict[str, gg.Tensor]:
        shapes = {"gate": (self.n_ff, self.k), "up": (self.n_ff, self.k), "down": (self.k, self.n_ff)}
        return {
            name: g.weight(
                random(self.n_experts, rows, width, seed=seed) / np.float32(width**0.5),
                type=self.down or self.type if name == "down" else self.type,
            )
            for seed, (name, (rows, width)) in enumerate(shapes.items(), 2)
        }


def build(g: gg.Graph, case: Experts) -> dict[str, np.ndarray]:
    """Add the case's nodes; returns its inputs."""
    n, used, k = case.n, case.used, case.k
    generator = np.random.default_rng(n)
    inputs = {
        "x": random(n, k),
        "ids": np.stack([generator.permutation(case.n_experts) for _ in range(n)]).astype(np.int32),
        "weights": np.abs(random(n, used, 1, seed=1)),
    }
    x, weights = g.input("x", (n, k)), g.input("weights", (n, used, 1))
    ids = g.input("ids", (n, case.n_experts), "i32")[:, :used]
    matrices, rows = case.matrices(g), x.reshape(n, 1, k)
    up = g.do(gg.mul_mat_id(matrices["up"], rows, ids)) if "up-first" in case.kind else None
    gate = g.do(gg.mul_mat_id(matrices["gate"], rows, ids))
    up = gg.mul_mat_id(matrices["up"], rows, ids) if up is None else up
    hidden = (gg.geglu if "geglu" in case.kind else gg.swiglu)(gate, up)
    each = gg.mul_mat_id(matrices["down"], hidden, ids) * weights
    total = each[:, 0, :] if used > 1 else each[:, 0, :].cont()
    for place in range(1, used):
        total = total + each[:, place, :]
    if "residual" in case.kind:
        inputs["residual"] = random(n, k, seed=5)
        total = total + g.input("residual", (n, k))
    g.output("y", total)
    g.output("kept", x * 2.0)  # as models need it later
    return inputs


def build_as_models_do(g: gg.Graph, case: Experts, *, extra: dict[str, gg.Tensor], **router: object) -> None:
    """The engine's own nodes for the case, with further weights of the block."""
    weights = {f"blk.0.ffn_{name}_exps.weight": matrix for name, matrix in case.matrices(g).items()} | extra
    chosen = {"kind": "softmax", "n_group": 1, "n_group_used": 1, "normalise": True, "weighs_inputs": False}
    hp = SimpleNamespace(
        n_embd=case.k, n_expert=case.n_experts, n_expert_used=case.used, expert_weights_scale=1.0,
        router=SimpleNamespace(**chosen | router),
    )  # fmt: skip
    f = SimpleNamespace(hp=hp, graph=g, is_mixed=False, maybe=weights.get, weight=weights.__getitem__)
    x, logits = g.input("x", (case.n, case.k)), g.input("logits", (case.n, case.n_experts))
    y = experts.routed(f, 0, x, logits, gate=gg.swiglu)  # type: ignore[arg-type]
    assert y is not None
    g.output("y", g.input("residual", (case.n, case.k)) + y)
