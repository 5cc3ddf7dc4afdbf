"""Graphs of chosen experts, which are computed in two launches."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from fused_graphs import of_bytes, quantised
from graphs import random

import pyggml as gg
from pyggml.engine.blocks import experts

# Rows are drawn from so many, which are quantised once; a prime.
N_DIFFERENT = 1021


@dataclass(frozen=True)
class Matrix:
    """One of an expert's three matrices, of all experts: each row one of some quantised ones."""

    shape: tuple[int, int, int]
    type: str
    seed: int

    @property
    def raw(self) -> np.ndarray:
        """The bytes of the rows to draw from."""
        return quantised(N_DIFFERENT, self.shape[-1], self.type, self.seed)

    @property
    def drawn(self) -> np.ndarray:
        """Which of them each expert's rows are, [n_experts, rows]."""
        return np.random.default_rng(self.seed).integers(N_DIFFERENT, size=self.shape[:2])

    def weight(self, g: gg.Graph) -> gg.Tensor:
        return of_bytes(g, self.raw.reshape(N_DIFFERENT, -1)[self.drawn].reshape(-1), self.shape, self.type)

    def product(self, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Float64 products of x [n, used or 1, width] with chosen experts [n, used]: [n, used, rows]."""
        values = gg.dequantize(self.raw, self.type, (N_DIFFERENT, self.shape[-1]))
        return np.take_along_axis(
            x.astype(np.float64) @ values.astype(np.float64).T, self.drawn[ids], axis=-1
        )


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

    def parts(self) -> dict[str, Matrix]:
        shapes = {"gate": (self.n_ff, self.k), "up": (self.n_ff, self.k), "down": (self.k, self.n_ff)}
        return {
            name: Matrix(
                (self.n_experts, *shape), self.down or self.type if name == "down" else self.type, seed
            )
            for seed, (name, shape) in enumerate(shapes.items(), 2)
        }

    def matrices(self, g: gg.Graph) -> dict[str, gg.Tensor]:
        return {name: part.weight(g) for name, part in self.parts().items()}


def build(g: gg.Graph, case: Experts) -> dict[str, np.ndarray]:
    """Add the case's nodes; returns its inputs. What was chosen is an output, so its memory stays."""
    n, used, k = case.n, case.used, case.k
    inputs = {
        "x": random(n, k),
        "scores": random(n, case.n_experts, seed=9),
        "weights": np.abs(random(n, used, 1, seed=1)),
    }
    x, weights = g.input("x", (n, k)), g.input("weights", (n, used, 1))
    ids = g.output("ids", gg.top_k(g.input("scores", (n, case.n_experts)), case.n_experts))[:, :used]
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


def exact(case: Experts, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The right y in float64, of activations that are not rounded."""
    ids = np.argsort(-inputs["scores"], axis=-1)[:, : case.used]
    parts, rows = case.parts(), inputs["x"][:, None]
    gate, up = parts["gate"].product(rows, ids), parts["up"].product(rows, ids)
    if "geglu" in case.kind:
        hidden = 0.5 * gate * (1 + np.tanh((2 / np.pi) ** 0.5 * gate * (1 + 0.044715 * gate**2))) * up
    else:
        hidden = gate / (1 + np.exp(-gate)) * up
    total = (parts["down"].product(hidden, ids) * inputs["weights"]).sum(1)
    return np.asarray(total + inputs.get("residual", 0.0))


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
