"""Attention over a cache, as decode steps of models have it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from graphs import random, stored

import pyggml as gg


@dataclass(frozen=True)
class AttentionCase:
    """`n` tokens of each of `n_seq` sequences that see `n_kv` rows of their slots; `kind` names what else there is."""

    head_dim: int = 64
    n_head: int = 4
    n_head_kv: int = 2
    n: int = 1
    n_seq: int = 1
    n_kv: int = 256
    kind: str = ""
    cache: str = "f16"

    def __str__(self) -> str:
        heads = f"{self.n_head}of{self.n_head_kv}x{self.head_dim}"
        return f"{heads}-{self.n}x{self.n_seq}-{self.n_kv}{'-' if self.kind else ''}{self.kind}-{self.cache}"

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)


def causal_mask(case: AttentionCase) -> np.ndarray:
    """The last tokens of the window; with `window` each sees 100 rows at most. Another length in each sequence."""
    mask = np.full((case.n_seq, 1, case.n, case.n_kv), -np.inf, np.float16)
    for seq in range(case.n_seq):
        for token in range(case.n):
            last = case.n_kv - case.n + token - 5 * seq
            mask[seq, 0, token, max(0, last - 99) if "window" in case.kind else 0 : last + 1] = 0
    return mask


def table_of(case: AttentionCase, seed: int) -> np.ndarray:
    """K or V of each slot's rows; there is a slot more than sequences."""
    return random((case.n_seq + 1) * (case.n_kv + 32), case.n_head_kv * case.head_dim, seed=seed)


def cached(g: gg.Graph, table: gg.Tensor, case: AttentionCase, n_rows: int) -> gg.Tensor:
    """The window on a cache's table of n_rows rows a slot."""
    row = table.strides[0]
    head = row // case.n_head_kv
    shape = (case.n_seq, case.n_kv, case.n_head_kv, case.head_dim)
    view = gg.view(table, shape, (n_rows * row, row, head), 0)
    return g.let_move(view, 1, step=n_rows * row).permute(0, 2, 1, 3)


def build_attention(g: gg.Graph, case: AttentionCase, *, n_copies: int = 1) -> dict[str, np.ndarray]:
    """Add n_copies of it, each with a cache of its own; returns the inputs."""
    inputs = {"q": 2 * random(case.n_seq * case.n, case.n_head * case.head_dim)}
    heads = g.input("q", inputs["q"].shape).reshape(case.n_seq, case.n, case.n_head, case.head_dim)
    mask = None
    if "bare" not in case.kind:
        inputs["mask"] = causal_mask(case)
        mask = g.let_move(g.input("mask", inputs["mask"].shape, "f16"), 3)
    sinks = g.weight(random(case.n_head, seed=4)) if "sinks" in case.kind else None
    for i in range(n_copies):
        tables = (g.weight(table_of(case, 10 * i + seed), type=case.cache) for seed in (2, 3))
        seen = gg.flash_attn(
            heads.permute(0, 2, 1, 3),
            *(cached(g, table, case, case.n_kv + 32) for table in tables),
            mask,
            scale=case.scale,
            max_bias=8.0 if "alibi" in case.kind else 0.0,
            softcap=5.0 if "softcap" in case.kind else 0.0,
            sinks=sinks,
        )
        g.output("y" if n_copies == 1 else f"y{i}", seen.reshape(case.n_seq * case.n, -1))
    return inputs


def right_attention(
    case: AttentionCase, inputs: dict[str, np.ndarray], *, slot: int = 0, copy: int = 0
) -> np.ndarray:
    """Of float16 rows in float64; the first sequence's slot is `slot`. The mask says how many rows are seen."""
    q = inputs["q"].reshape(case.n_seq, case.n, case.n_head, case.head_dim).astype(np.float64)
    mask = inputs["mask"].astype(np.float64) if "mask" in inputs else np.zeros((1, 1, 1, case.n_kv))
    k, v = (
        stored(table_of(case, 10 * copy + seed), "f16")
        .reshape(case.n_seq + 1, -1, case.n_head_kv, case.head_dim)[slot:, : mask.shape[-1]]
        .repeat(case.n_head // case.n_head_kv, axis=2)[: case.n_seq]
        for seed in (2, 3)
    )
    scores = np.einsum("sthd,sjhd->shtj", q, k) * case.scale
    scores = (5 * np.tanh(scores / 5) if "softcap" in case.kind else scores) + mask
    if "sinks" in case.kind:
        sinks = np.broadcast_to(random(case.n_head, seed=4)[:, None, None], (*scores.shape[:3], 1))
        scores = np.concatenate([scores, sinks], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = (weights / weights.sum(-1, keepdims=True))[..., : mask.shape[-1]]
    return np.asarray(np.einsum("shtj,sjhd->sthd", weights, v).reshape(case.n_seq * case.n, -1))
