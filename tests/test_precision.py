"""Numbers beyond float16: scores of attention and activations must not turn into infinity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from graphs import cpu, random, with_weights

import pyggml as gg

HEAD_DIM = 128
N_KV = 2


def attention_of_large_scores(n: int, *, fused: bool) -> np.ndarray:
    """Queries of 40 against keys of 40 and -40: raw scores of 204800, which float16 does not hold."""
    q = np.full((1, 1, n, HEAD_DIM), 40, np.float32)
    k = np.stack([np.full(HEAD_DIM, 40), np.full(HEAD_DIM, -40)]).astype(np.float16)[None, None]
    v = np.stack([np.full(HEAD_DIM, 1), np.full(HEAD_DIM, 2)]).astype(np.float16)[None, None]
    scale = 1 / math.sqrt(HEAD_DIM)

    def build(q: gg.Tensor, k: gg.Tensor, v: gg.Tensor) -> gg.Tensor:
        if fused:
            return gg.flash_attn(q, k, v, None, scale=scale)
        scores = gg.soft_max(gg.mul_mat(k, q, f32=True), scale=scale)
        return gg.mul_mat(v.T.cont(), scores).permute(0, 2, 1, 3)

    return with_weights(build, {"q": q}, k=k, v=v)


@pytest.mark.parametrize("fused", [True, False], ids=["flash_attn", "three steps"])
@pytest.mark.parametrize("n", [1, 8, 64, 512])
def test_scores_beyond_float16_choose_the_right_value(n: int, fused: bool) -> None:
    np.testing.assert_array_equal(
        attention_of_large_scores(n, fused=fused), np.ones((1, n, 1, HEAD_DIM), np.float32)
    )


def test_the_raw_score_is_exact_when_float32_is_asked_for() -> None:
    q, k = np.full((1, HEAD_DIM), 40, np.float32), np.full((1, HEAD_DIM), 40, np.float16)
    assert with_weights(lambda q, k: gg.mul_mat(k, q, f32=True), {"q": q}, k=k) == 204800


@pytest.mark.parametrize("n_columns", [63, 64, 65])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0", "q4_k", "bf16", "f32"])
def test_an_activation_beyond_float16_stays_finite(kind: str, n_columns: int) -> None:
    w, x = random(32, 256), np.ones((n_columns, 256), np.float32)
    x[:, 17] = 70000
    y = with_weights(gg.mul_mat, {"x": x}, w=(w, kind))
    right = x.astype(np.float64) @ gg.dequantize(gg.quantize(w, kind), kind, w.shape).astype(np.float64).T
    assert np.isfinite(y).all()
    assert np.linalg.norm(y - right) <= 0.02 * np.linalg.norm(right)


def test_a_float16_input_too_large_becomes_infinity_and_nothing_else() -> None:
    with gg.Graph(cpu()) as g, np.errstate(over="ignore"):
        g.output("y", g.input("x", (3,), "f16").cast("f32"))
        assert g.run(x=np.array([70000.0, -70000.0, 65504.0], np.float32))["y"].tolist() == [
            np.inf,
            -np.inf,
            65504,
        ]
