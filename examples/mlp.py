"""A multilayer perceptron in float32 and with quantised weights, compared with numpy.

python examples/mlp.py [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

import pyggml as gg

WIDTHS = (256, 512, 512, 64)
rng = np.random.default_rng(0)
WEIGHTS = [
    rng.standard_normal((n_out, n_in), np.float32) / n_in**0.5 for n_in, n_out in zip(WIDTHS, WIDTHS[1:])
]
BIASES = [rng.standard_normal(n_out, np.float32) for n_out in WIDTHS[1:]]
X = rng.standard_normal((32, WIDTHS[0]), np.float32)


def in_numpy(x: np.ndarray) -> np.ndarray:
    for w, b in zip(WEIGHTS, BIASES):
        x = np.maximum(x @ w.T + b, 0)
    return x


def on_device(backend: gg.Backend, kind: str) -> tuple[np.ndarray, int]:
    with gg.Graph(backend) as g:
        y = g.input("x", X.shape)
        weights = [g.weight(w, type=kind) for w in WEIGHTS]
        for w, b in zip(weights, BIASES):
            y = gg.relu(y @ w.T + g.weight(b))
        g.output("y", y)
        return g.run(x=X)["y"], sum(w.n_bytes for w in weights)


right = in_numpy(X)
with gg.Backend(sys.argv[1] if len(sys.argv) > 1 else gg.default_device()) as backend:
    for kind in ("f32", "bf16", "q8_0", "q4_k"):
        y, n_bytes = on_device(backend, kind)
        error = np.linalg.norm(y - right) / np.linalg.norm(right)
        print(f"{backend.device.name} {kind:5} {n_bytes / 1e6:.2f} MB of weights, relative error {error:.1e}")
