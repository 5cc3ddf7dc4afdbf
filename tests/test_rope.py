"""Rotary positions and their scalings, against numpy with the formulas of the models' own code.

Angles at position 10000 are sums of float32 steps in ggml, so that first pairs are off by up to 1e-3 rad.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graphs import cpu, random

import pyggml as gg
from pyggml.engine.hparams import rope_from
from pyggml.engine.keys import Keys

POSITIONS = [5, 5000, 10000]
ANGLE_ERROR = 2e-3


def inverse_frequencies(n_dims: int, base: float) -> np.ndarray:
    return np.asarray(base ** (-np.arange(0, n_dims, 2) / n_dims))


def rotate(x: np.ndarray, angles: np.ndarray, *, neox: bool, magnitude: float = 1.0) -> np.ndarray:
    """Turn the pairs of each head. Shapes: x [n_tokens, n_head, head_dim], angles [n_tokens, n_dims / 2]."""
    n = angles.shape[-1]
    first, second = (slice(0, n), slice(n, 2 * n)) if neox else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    a, b = x[..., first].astype(np.float64), x[..., second].astype(np.float64)
    cos, sin = magnitude * np.cos(angles)[:, None], magnitude * np.sin(angles)[:, None]
    y = x.astype(np.float64)
    y[..., first], y[..., second] = a * cos - b * sin, a * sin + b * cos
    return y


def turned(
    x: np.ndarray, positions: list[int], factors: np.ndarray | None = None, **options: Any
) -> np.ndarray:
    """gg.rope of all positions at once; the same one by one must give the same bits."""
    options.setdefault("n_dims", x.shape[-1])
    with gg.Graph(cpu()) as prefill, gg.Graph(cpu()) as decode:
        for g, n in ((prefill, len(positions)), (decode, 1)):
            weights = None if factors is None else g.weight(factors.astype(np.float32))
            tensor = g.input("x", (n, *x.shape[1:]))
            g.output("y", gg.rope(tensor, g.input("positions", (n,), "i32"), freq_factors=weights, **options))
        whole = prefill.run(x=x, positions=positions)["y"]
        steps = [decode.run(x=x[i : i + 1], positions=[p])["y"] for i, p in enumerate(positions)]
        np.testing.assert_array_equal(whole, np.concatenate(steps))
        return whole


@pytest.mark.parametrize("n_dims", [64, 32, 2])
@pytest.mark.parametrize("neox", [False, True])
def test_pairs_turn_by_position_and_the_rest_stays(neox: bool, n_dims: int) -> None:
    x, positions = random(4, 3, 64), [0, *POSITIONS]
    angles = np.outer(positions, inverse_frequencies(n_dims, 10000.0))
    y = turned(x, positions, n_dims=n_dims, neox=neox)
    np.testing.assert_allclose(y, rotate(x, angles, neox=neox), atol=4 * ANGLE_ERROR)
    np.testing.assert_array_equal(y[..., n_dims:], x[..., n_dims:])


def test_half_precision_turns_as_well() -> None:
    x = random(3, 2, 64).astype(np.float16)
    with gg.Graph(cpu()) as g:
        tensor = g.input("x", x.shape, "f16")
        g.output("y", gg.rope(tensor, g.input("positions", (3,), "i32"), n_dims=64, neox=True))
        y = g.run(x=x, positions=[1, 2, 3])["y"]
    angles = np.outer([1, 2, 3], inverse_frequencies(64, 10000.0))
    np.testing.assert_allclose(y, rotate(x, angles, neox=True), atol=5e-3)


def llama3_factors(head_dim: int, factor: float, *, base: float = 500000.0) -> np.ndarray:
    """The per-pair divisors of Llama 3.1 and 3.2: none for fast pairs, the whole factor for slow ones."""
    low, high, n_original = 1.0, 4.0, 8192
    lengths = 2 * math.pi / inverse_frequencies(head_dim, base)
    smooth = np.clip((n_original / lengths - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


LLAMA3 = [
    (
        128,
        8.0,
        {28: 1.0, 29: 1.2075, 30: 1.5534, 31: 2.0263, 32: 2.6945, 33: 3.6843, 34: 5.2573, 35: 8.0, 63: 8.0},
    ),
    (64, 32.0, {14: 1.0, 15: 1.6513, 16: 3.2923, 17: 9.6667, 18: 32.0, 31: 32.0}),
]


@pytest.mark.parametrize(("head_dim", "factor", "right"), LLAMA3, ids=["3.1-8B", "3.2-1B"])
def test_frequency_factors_divide_the_angles(head_dim: int, factor: float, right: dict[int, float]) -> None:
    factors = llama3_factors(head_dim, factor)
    np.testing.assert_allclose(factors[list(right)], list(right.values()), rtol=5e-5)
    x = random(3, 2, head_dim)
    angles = np.outer(POSITIONS, inverse_frequencies(head_dim, 500000.0) / factors)
    for neox in (False, True):
        y = turned(x, POSITIONS, factors, freq_base=500000.0, neox=neox)
        np.testing.assert_allclose(y, rotate(x, angles, neox=neox), atol=4 * ANGLE_ERROR)


@pytest.mark.parametrize(
    ("pair", "is_scaled", "angle"), [(29, True, 21.6657), (29, False, 26.1610), (63, True, 0.0030689)]
)
def test_llama_31_at_position_10000(pair: int, is_scaled: bool, angle: float) -> None:
    x = np.zeros((1, 1, 128), np.float32)
    x[..., 2 * pair] = 1
    y = turned(x, [10000], llama3_factors(128, 8.0) if is_scaled else None, freq_base=500000.0)
    near = 1e-4 if angle > 1 else 1e-7
    np.testing.assert_allclose(
        y[0, 0, 2 * pair : 2 * pair + 2], [math.cos(angle), math.sin(angle)], atol=near
    )


def test_fewer_factors_than_pairs_of_the_head_do_when_fewer_are_turned() -> None:
    x, factors = random(3, 2, 64), np.linspace(1, 8, 12)
    angles = np.outer(POSITIONS, inverse_frequencies(24, 10000.0) / factors)
    y = turned(x, POSITIONS, factors, n_dims=24)
    np.testing.assert_allclose(y, rotate(x, angles, neox=False), atol=4 * ANGLE_ERROR)


def yarn_range(n_dims: int, base: float, n_original: int) -> tuple[int, int]:
    """The pairs between which the scaling sets in, for 32 and 1 turns."""
    low, high = (
        n_dims * math.log(n_original / (n_turns * 2 * math.pi)) / (2 * math.log(base)) for n_turns in (32, 1)
    )
    return max(math.floor(low), 0), min(math.ceil(high), n_dims - 1)


YARN = [(128, 1e6, 32768, (23, 40)), (64, 150000.0, 4096, (8, 18))]
MAGNITUDES = {4: 1.138629, 8: 1.207944, 32: 1.346574, 40: 1.368888}


@pytest.mark.parametrize(("factor", "magnitude"), MAGNITUDES.items())
@pytest.mark.parametrize(("head_dim", "base", "n_original", "pairs"), YARN, ids=["Qwen2.5", "4096"])
def test_yarn_scales_slow_pairs_and_the_magnitude(
    head_dim: int, base: float, n_original: int, pairs: tuple[int, int], factor: int, magnitude: float
) -> None:
    assert yarn_range(head_dim, base, n_original) == pairs
    low, high = pairs
    ramp = np.clip((np.arange(head_dim // 2) - low) / (high - low), 0, 1)
    frequencies = inverse_frequencies(head_dim, base)
    angles = np.outer(POSITIONS, frequencies / factor * ramp + frequencies * (1 - ramp))
    x = random(3, 2, head_dim)
    y = turned(
        x, POSITIONS, neox=True, freq_base=base, freq_scale=1 / factor, ext_factor=1.0, n_ctx_orig=n_original
    )
    np.testing.assert_allclose(y, rotate(x, angles, neox=True, magnitude=magnitude), atol=6 * ANGLE_ERROR)


def settings(**keys: Any) -> dict[str, Any]:
    """rope()'s options for a model with these keys."""
    metadata = {
        "llama.context_length": 4096,
        **{f"llama.rope.{n.replace('__', '.')}": v for n, v in keys.items()},
    }
    rope = rope_from(Keys(metadata, "llama"), 64, neox=False)
    names = (
        "n_dims",
        "n_ctx_orig",
        "freq_base",
        "freq_scale",
        "ext_factor",
        "attn_factor",
        "beta_fast",
        "beta_slow",
    )
    return {name: getattr(rope, name) for name in names}


def magnitude_of(options: dict[str, Any]) -> np.ndarray:
    """How much longer each turned pair is, at all positions."""
    x = random(3, 2, 64)
    lengths = [np.hypot(a[..., ::2], a[..., 1::2]) for a in (turned(x, POSITIONS, **options), x)]
    return np.asarray(lengths[0] / lengths[1])


@pytest.mark.parametrize(("factor", "magnitude"), MAGNITUDES.items())
def test_a_yarn_models_magnitude_is_applied_once(factor: int, magnitude: float) -> None:
    options = settings(scaling__type="yarn", scaling__factor=float(factor))
    np.testing.assert_allclose(magnitude_of(options), magnitude, rtol=1e-5)


def test_two_equal_scales_in_the_style_of_deepseek_cancel() -> None:
    options = settings(scaling__type="yarn", scaling__factor=40.0, scaling__yarn_log_multiplier=1.0)
    np.testing.assert_allclose(magnitude_of(options), 1.0, rtol=1e-5)


@pytest.mark.parametrize(("mscale", "right"), [(0.707, 1.589626), (1.0, 1.873854)])
def test_the_softmax_scale_in_the_style_of_deepseek_is_the_magnitude_squared(
    mscale: float, right: float
) -> None:
    options = settings(scaling__type="yarn", scaling__factor=40.0)
    options["attn_factor"] = (1 + 0.1 * mscale * math.log(40)) / (1 + 0.1 * math.log(40))
    x = random(3, 2, 64)
    y = turned(x, POSITIONS, **options)
    np.testing.assert_allclose((y**2).sum(-1) / (x**2).sum(-1), right, rtol=1e-5)


def test_linear_scaling_by_two_turns_position_10_like_5() -> None:
    x = random(1, 2, 64)
    np.testing.assert_array_equal(
        turned(x, [10], **settings(scaling__type="linear", scaling__factor=2.0)), turned(x, [5], **settings())
    )


@pytest.mark.parametrize(
    "keys", [{"scaling__factor": 1.0}, {"scaling__type": "none", "scaling__factor": 4.0}]
)
def test_a_factor_of_one_and_the_type_none_change_nothing(keys: dict[str, Any]) -> None:
    x = random(3, 2, 64)
    np.testing.assert_array_equal(
        turned(x, POSITIONS, **settings(**keys)), turned(x, POSITIONS, **settings())
    )


REFUSED = [
    (lambda x, p: gg.rope(x, p[:2], n_dims=8), "one int32 position a token"),
    (lambda x, p: gg.rope(x, p.cast("f32"), n_dims=8), "f32 is not among i32"),
    (lambda x, p: gg.rope(x, p, n_dims=7), "n_dims = 7 must be even"),
    (lambda x, p: gg.rope(x, p, n_dims=10), "at most head_dim"),
    (lambda x, p: gg.rope(x, p, n_dims=0), "must be even"),
    (lambda x, p: gg.rope(x[..., :7], p, n_dims=6), "must be even"),
    (lambda x, p: gg.rope(x.permute(0, 2, 1), p, n_dims=2), "rows have gaps"),
    (lambda x, p: gg.rope(x.cast("bf16"), p, n_dims=8), "bf16 is not among f16, f32"),
    (lambda x, p: gg.rope(x, p, n_dims=8, freq_factors=x[0, 0, :3]), "4 factors are needed"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_refused_with_the_reason(build: Any, words: str) -> None:
    with gg.Graph(cpu()) as g, pytest.raises(gg.ShapeError, match=words):
        build(g.input("x", (3, 2, 8)), g.input("positions", (3,), "i32"))
