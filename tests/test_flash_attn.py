"""Softmax under a mask, and attention in one operation, against numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from graphs import compute, cpu, random, stored, with_weights

import pyggml as gg


def soft_max(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def causal(n: int, n_kv: int) -> np.ndarray:
    """0 where query i may see key j, else -inf; the queries are the last of the keys."""
    return np.where(np.tri(n, n_kv, n_kv - n, dtype=bool), 0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("shape", [(7,), (3, 33), (2, 3, 5), (2, 3, 4, 5)])
def test_soft_max_of_rows(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    np.testing.assert_allclose(compute(lambda t: gg.soft_max(t, scale=0.5), x), soft_max(x * 0.5), rtol=1e-5)


MASKS = [(4, 5), (6, 5), (1, 1, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 4, 5)]


@pytest.mark.parametrize("kind", ["f32", "f16"])
@pytest.mark.parametrize("mask_shape", MASKS, ids=str)
def test_masks_are_added_and_repeated_over_outer_dimensions(mask_shape: tuple[int, ...], kind: str) -> None:
    x, mask = random(2, 3, 4, 5), stored(random(*mask_shape, seed=1), kind)
    expected = soft_max(x * 0.5 + mask[..., :4, :])
    y = compute(lambda t, m: gg.soft_max(t, m, scale=0.5), x, mask, kinds={1: kind})
    np.testing.assert_allclose(y, expected, rtol=1e-5)


def test_hidden_places_get_exactly_zero() -> None:
    y = compute(gg.soft_max, random(4, 6), causal(4, 6))
    assert (y[~np.tri(4, 6, 2, dtype=bool)] == 0).all()
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)


def slopes(n_head: int, max_bias: float) -> np.ndarray:
    """ALiBi's factors, for a number of heads that is a power of two."""
    return np.array([2.0 ** (-max_bias * (h + 1) / n_head) for h in range(n_head)])


def test_max_bias_scales_the_mask_by_head() -> None:
    x, mask = random(4, 5, 6), -np.abs(random(5, 6, seed=1))
    expected = soft_max(x + slopes(4, 8.0)[:, None, None] * mask)
    np.testing.assert_allclose(
        compute(lambda t, m: gg.soft_max(t, m, max_bias=8.0), x, mask), expected, rtol=1e-4
    )


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, softcap: float = 0.0
) -> np.ndarray:
    """Shapes as gg.flash_attn's: heads of q share those of k and v in groups."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    return np.asarray((soft_max(scores if mask is None else scores + mask) @ v).swapaxes(1, 2))


def fused(
    q: gg.Tensor, k: gg.Tensor, v: gg.Tensor, mask: gg.Tensor | None = None, **options: float
) -> gg.Tensor:
    return gg.flash_attn(q, k, v, mask, scale=1 / math.sqrt(q.shape[-1]), **options)


NEAR = {"f32": 1e-5, "f16": 3e-3, "bf16": 1e-2, "q8_0": 2e-2, "q4_0": 2e-2}


# 1 query against 512 keys and 64 queries take other paths through ggml than a few.
@pytest.mark.parametrize(("n", "n_kv"), [(1, 40), (1, 512), (5, 40), (64, 96), (70, 600)])
@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize("n_head_kv", [1, 2, 6])
def test_attention_of_grouped_heads(n_head_kv: int, kind: str, n: int, n_kv: int) -> None:
    q, k, v = (
        random(1, 6, n, 64),
        stored(random(1, n_head_kv, n_kv, 64), kind),
        stored(random(1, n_head_kv, n_kv, 32), kind),
    )
    mask = causal(n, n_kv)[None, None]
    y = with_weights(fused, {"q": q, "mask": mask.astype(np.float16)}, k=(k, kind), v=(v, kind))
    np.testing.assert_allclose(y, attention(q, k, v, mask), atol=NEAR[kind] * np.abs(v).max())


@pytest.mark.parametrize("n_masks", [1, 3])
def test_sequences_attend_each_to_its_own_keys(n_masks: int) -> None:
    q, k, v = random(3, 4, 5, 16), random(3, 2, 32, 16, seed=1), random(3, 2, 32, 16, seed=2)
    mask = np.stack(
        [causal(5, 32 - 4 * i) if i == 0 else np.roll(causal(5, 32), -4 * i, -1) for i in range(n_masks)]
    )[:, None]
    y = with_weights(fused, {"q": q, "mask": mask.astype(np.float16)}, k=k, v=v)
    np.testing.assert_allclose(y, attention(q, k, v, mask), atol=1e-5)


def test_attention_without_a_mask_sees_everything() -> None:
    q, k, v = random(1, 2, 5, 16), random(1, 2, 8, 16, seed=1), random(1, 2, 8, 16, seed=2)
    np.testing.assert_allclose(with_weights(fused, {"q": q}, k=k, v=v), attention(q, k, v, None), atol=1e-5)


def test_scores_can_be_capped() -> None:
    q, k, v = 5 * random(1, 2, 5, 16), 5 * random(1, 2, 8, 16, seed=1), random(1, 2, 8, 16, seed=2)
    y = with_weights(lambda q, k, v: fused(q, k, v, softcap=3.0), {"q": q}, k=k, v=v)
    np.testing.assert_allclose(y, attention(q, k, v, None, softcap=3.0), atol=1e-4)


def with_sinks(scores: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """Softmax with one more score a head, which is then left out."""
    column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
    return np.asarray(soft_max(np.concatenate([scores, column], -1))[..., :-1])


def test_sinks_take_their_part_of_the_sum_and_give_nothing() -> None:
    x, sinks = random(2, 4, 5, 8), random(4, seed=1)
    y = compute(lambda t, s: gg.soft_max(t, scale=0.5, sinks=s), x, sinks)
    np.testing.assert_allclose(y, with_sinks(x * 0.5, sinks), rtol=1e-5)


@pytest.mark.parametrize("n", [1, 5, 64])
def test_attention_with_sinks(n: int) -> None:
    q, k, v, sinks = random(1, 4, n, 16), random(1, 2, 96, 16, seed=1), random(1, 2, 96, 16, seed=2), random(4, seed=3)
    mask = causal(n, 96)[None, None]
    weights = with_sinks(q @ k.repeat(2, 1).swapaxes(-1, -2) / 4 + mask, sinks)
    y = with_weights(
        lambda q, m, k, v, s: gg.flash_attn(q, k, v, m, scale=0.25, sinks=s),
        {"q": q, "m": mask.astype(np.float16)}, k=k, v=v, s=sinks,
    )  # fmt: skip
    np.testing.assert_allclose(y, (weights @ v.repeat(2, 1)).swapaxes(1, 2), atol=1e-5)


def test_keys_and_values_may_be_windows_of_a_cache() -> None:
    cache, q = random(96, 4, 16), random(1, 4, 1, 16, seed=1)
    y = with_weights(
        lambda q, c: fused(q, c[:40].permute(1, 0, 2), c[8:48].permute(1, 0, 2)), {"q": q}, c=cache
    )
    k, v = (c.swapaxes(0, 1)[None] for c in (cache[:40], cache[8:48]))
    np.testing.assert_allclose(y, attention(q, k, v, None), atol=1e-5)


def operands(g: gg.Graph, **kinds: str) -> list[gg.Tensor]:
    return [g.input(n, (1, 2, 8, 16), kinds.get(n, "f32")) for n in "qkv"]


REFUSED = [
    (lambda g: gg.flash_attn(*operands(g, q="f16"), None, scale=1.0), "f16 is not among f32"),
    (lambda g: gg.flash_attn(*operands(g, k="i32"), None, scale=1.0), "i32 is not among"),
    (lambda g: gg.flash_attn(*operands(g), None, scale=1.0, max_bias=8.0), "max_bias needs a mask"),
    (lambda g: gg.flash_attn(*operands(g), g.input("m", (8, 8)), scale=1.0), "f32 is not among f16"),
    (
        lambda g: gg.flash_attn(*operands(g), g.input("m", (8, 7), "f16"), scale=1.0),
        "the mask does not cover it",
    ),
    (
        lambda g: gg.flash_attn(*operands(g), g.input("m", (7, 8), "f16"), scale=1.0),
        "the mask does not cover it",
    ),
    (
        lambda g: gg.flash_attn(g.input("a", (1, 3, 8, 16)), *operands(g)[1:], None, scale=1.0),
        "heads or lengths",
    ),
    (
        lambda g: gg.flash_attn(g.input("a", (2, 2, 8, 16)), *operands(g)[1:], None, scale=1.0),
        "numbers of sequences",
    ),
    (
        lambda g: gg.flash_attn(*operands(g)[:2], g.input("a", (1, 2, 16, 8)).T, None, scale=1.0),
        "rows have gaps",
    ),
    (lambda g: gg.soft_max(g.input("x", (4, 8)), max_bias=1.0), "max_bias needs a mask"),
    (lambda g: gg.soft_max(g.input("x", (4, 8), "f16")), "f16 is not among f32"),
    (lambda g: gg.soft_max(g.input("x", (4, 8)).T), "not contiguous"),
    (lambda g: gg.soft_max(g.input("x", (3, 4, 8)), sinks=g.input("s", (4,))), "one sink for each head"),
    (lambda g: gg.soft_max(g.input("x", (4, 8)), g.input("m", (3, 8))), "the mask does not cover it"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_refused_with_the_reason(build: Any, words: str) -> None:
    with gg.Graph(cpu()) as g, pytest.raises(gg.ShapeError, match=words):
        build(g)
