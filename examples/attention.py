"""A layer of causal attention, token by token over a cache in the device's memory, compared with numpy all at once.

python examples/attention.py [DEVICE]
"""

from __future__ import annotations

import math
import sys

import numpy as np

import pyggml as gg

N_EMBD, N_HEAD, HEAD_DIM, N_CTX = 128, 4, 32, 64
SCALE = 1 / math.sqrt(HEAD_DIM)
rng = np.random.default_rng(0)
WQ, WK, WV, WO = rng.standard_normal((4, N_EMBD, N_EMBD), np.float32) / N_EMBD**0.5
X = rng.standard_normal((40, N_EMBD), np.float32)


def in_numpy(x: np.ndarray) -> np.ndarray:
    q, k, v = ((x @ w.T).reshape(len(x), N_HEAD, HEAD_DIM).swapaxes(0, 1) for w in (WQ, WK, WV))
    scores = np.where(np.tri(len(x), dtype=bool), q @ k.swapaxes(1, 2) * SCALE, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    seen = weights / weights.sum(-1, keepdims=True) @ v
    return seen.swapaxes(0, 1).reshape(len(x), N_EMBD) @ WO.T


def decode_graph(backend: gg.Backend, kind: str) -> gg.Graph:
    """One token a run: its key and value are written into row `at` of the cache, which stays between runs."""
    g = gg.Graph(backend)
    x, at = g.input("x", (1, N_EMBD)), g.input("at", (1,), "i64")
    mask = g.input("mask", (1, 1, 1, N_CTX), "f16")
    q = (x @ g.weight(WQ).T).reshape(1, 1, N_HEAD, HEAD_DIM).permute(0, 2, 1, 3)
    k = gg.set_rows(g.state("k", (N_CTX, N_EMBD), kind), x @ g.weight(WK).T, at)
    v = gg.set_rows(g.state("v", (N_CTX, N_EMBD), kind), x @ g.weight(WV).T, at)
    heads = [t.reshape(1, N_CTX, N_HEAD, HEAD_DIM).permute(0, 2, 1, 3) for t in (k, v)]
    seen = gg.flash_attn(q, *heads, mask, scale=SCALE)
    if not backend.supports(seen):
        scores = gg.soft_max(gg.mul_mat(heads[0], q, f32=True), mask, scale=SCALE)
        values = heads[1].cast("f32") if heads[1].dtype.is_quantized else heads[1]
        seen = gg.mul_mat(values.T.cont(), scores).permute(0, 2, 1, 3).cont()
    g.output("y", seen.reshape(1, N_EMBD) @ g.weight(WO).T)
    return g


right = in_numpy(X)
with gg.Backend(sys.argv[1] if len(sys.argv) > 1 else gg.default_device()) as backend:
    for kind in ("f16", "bf16", "q8_0"):
        with decode_graph(backend, kind) as g:
            mask = np.full((1, 1, 1, N_CTX), -np.inf)
            rows = []
            for i, x in enumerate(X):
                mask[..., i] = 0
                rows.append(g.run(x=x[None], at=[i], mask=mask)["y"])
        error = np.linalg.norm(np.concatenate(rows) - right) / np.linalg.norm(right)
        print(
            f"{backend.device.name}: {len(X)} tokens one by one over a cache of {kind}, relative error {error:.1e}"
        )
