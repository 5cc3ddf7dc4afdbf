"""Matrix products against numpy: plain, batched, with quantised weights, by experts, the Hadamard rotation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import compute, cpu, random, stored, with_weights

import pyggml as gg
from pyggml.dtypes import DTYPES

# Without the types that want an importance matrix and those whose quantisers build tables for many seconds.
SLOW = ("iq1_m", "iq2_s")
QUANTISED = [
    t.name for t in DTYPES if t.is_quantized and not t.needs_imatrix and t.name not in ("q8_1", "q8_k", *SLOW)
]


def nmse(got: np.ndarray, right: np.ndarray) -> float:
    return float(((got - right) ** 2).sum() / (right**2).sum())


@pytest.mark.parametrize("rows", [1, 3, 65])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", *QUANTISED])
def test_weights_of_every_type_multiply(kind: str, rows: int) -> None:
    w, x = random(17, 512), random(rows, 512, seed=1)
    y = with_weights(gg.mul_mat, {"x": x}, w=(w, kind))
    assert y.shape == (rows, 17)
    assert nmse(y, x @ stored(w, kind).T) < (1e-10 if kind == "f32" else 1e-5 if kind == "bf16" else 2e-4)


BATCHES = [
    ((4, 8), (5, 8)),
    ((4, 8), (8,)),
    ((2, 4, 8), (2, 5, 8)),
    ((1, 4, 8), (3, 5, 8)),
    ((2, 4, 8), (6, 5, 8)),
    ((2, 3, 4, 8), (2, 3, 5, 8)),
    ((1, 3, 4, 8), (2, 6, 5, 8)),
    ((4, 8), (2, 3, 5, 8)),
]


def repeated_product(w: np.ndarray, x: np.ndarray) -> np.ndarray:
    """x @ w.T where outer dimensions of w repeat: the copies of one matrix lie side by side."""
    w4, x4 = (a.reshape((1,) * (4 - a.ndim) + a.shape) for a in (w, x))
    w4 = w4.repeat(x4.shape[0] // w4.shape[0], 0).repeat(x4.shape[1] // w4.shape[1], 1)
    return np.asarray((x4 @ w4.swapaxes(-1, -2)).reshape(*x.shape[:-1], w.shape[-2]))


@pytest.mark.parametrize(("w_shape", "x_shape"), BATCHES, ids=str)
def test_outer_dimensions_of_the_weight_repeat(w_shape: tuple[int, ...], x_shape: tuple[int, ...]) -> None:
    w, x = random(*w_shape), random(*x_shape, seed=1)
    y = compute(gg.mul_mat, w, x).reshape(*x_shape[:-1], w_shape[-2])
    np.testing.assert_allclose(y, repeated_product(w, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("w", "x"), [("f16", "f16"), ("bf16", "bf16"), ("f32", "bf16"), ("bf16", "f32"), ("f16", "f32")]
)
def test_half_precision_on_both_sides(w: str, x: str) -> None:
    a, b = stored(random(6, 64), w), stored(random(5, 64, seed=1), x)
    assert nmse(compute(gg.mul_mat, a, b, kinds=[w, x]), b @ a.T) < 1e-5


def test_rows_of_a_permuted_operand_multiply_where_they_lie() -> None:
    w, x = random(3, 4, 8), random(5, 3, 8, seed=1)
    y = compute(lambda a, b: gg.mul_mat(a, b.permute(1, 0, 2)), w, x)
    np.testing.assert_allclose(y, x.swapaxes(0, 1) @ w.swapaxes(1, 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_the_operator_reads_as_numpys(kind: str) -> None:
    w, x = random(32, 64), random(5, 64, seed=1)
    y = with_weights(lambda x, w: x @ w.T, {"x": x}, w=(w, kind))
    assert nmse(y, x @ stored(w, kind).T) < 1e-4


def test_the_operator_multiplies_by_a_plain_matrix_and_by_batches_of_them() -> None:
    for a_shape, b_shape in (((5, 8), (8, 3)), ((2, 5, 8), (2, 8, 3)), ((2, 3, 5, 8), (2, 3, 8, 4))):
        a, b = random(*a_shape), random(*b_shape, seed=1)
        np.testing.assert_allclose(compute(lambda s, t: s @ t, a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_a_matrix_transposed_twice_is_itself() -> None:
    w, x = random(32, 64), random(5, 64, seed=1)
    y = with_weights(lambda x, w: gg.mul_mat(w.T.T, x), {"x": x}, w=(w, "q8_0"))
    assert nmse(y, x @ stored(w, "q8_0").T) < 1e-4


def test_a_buffers_matrix_needs_no_graph_to_be_transposed() -> None:
    w, x = random(6, 8), random(5, 8, seed=1)
    with gg.Buffer(cpu(), {"w": (w.shape, "f32")}) as buffer, gg.Graph(cpu()) as g:
        buffer["w"].set(w)
        g.output("y", g.input("x", x.shape) @ buffer["w"].T)
        np.testing.assert_allclose(g.run(x=x)["y"], x @ w.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0", "q4_k", "mxfp4"])
@pytest.mark.parametrize("n_used_x", [1, 2])
@pytest.mark.parametrize("n_tokens", [1, 5, 40])
def test_experts_multiply_the_tokens_that_chose_them(kind: str, n_used_x: int, n_tokens: int) -> None:
    experts, x = random(4, 6, 256), random(n_tokens, n_used_x, 256, seed=1)
    ids = np.random.default_rng(2).random((n_tokens, 4)).argsort(1)[:, :2].astype(np.int32)
    y = with_weights(lambda x, ids, e: gg.mul_mat_id(e, x, ids), {"x": x, "ids": ids}, e=(experts, kind))
    chosen = stored(experts, kind)[ids]
    assert nmse(y, np.einsum("tuoi,tui->tuo", chosen, np.broadcast_to(x, (n_tokens, 2, 256)))) < 1e-4


@pytest.mark.parametrize("n_tokens", [1, 5])
def test_biases_are_those_of_the_chosen_experts(n_tokens: int) -> None:
    biases, x = random(4, 6), random(n_tokens, 2, 6, seed=1)
    ids = np.random.default_rng(2).integers(0, 4, (n_tokens, 2)).astype(np.int32)
    y = with_weights(lambda x, ids, b: gg.add_id(x, b, ids), {"x": x, "ids": ids}, b=biases)
    np.testing.assert_allclose(y, x + biases[ids], rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "words"), [([[0, 1], [2, 2]], "holds 2 twice among 2"), ([[0, 4], [1, 2]], "holds 4; the rows")]
)
def test_inputs_that_choose_experts_are_checked(ids: list[list[int]], words: str) -> None:
    with gg.Graph(cpu()) as g:
        experts = g.weight(random(4, 6, 256))
        g.output("y", gg.mul_mat_id(experts, g.input("x", (2, 1, 256)), g.input("ids", (2, 2), "i32")))
        with pytest.raises(gg.ShapeError, match=words):
            g.run(x=random(2, 1, 256), ids=np.array(ids))
        assert g.run(x=random(2, 1, 256), ids=np.array([[0, 1], [3, 2]]))["y"].shape == (2, 2, 6)


def hadamard_matrix(n: int) -> np.ndarray:
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.float32(np.sqrt(n))


@pytest.mark.parametrize("n", [1, 2, 8, 64, 256])
def test_the_hadamard_rotation_is_the_product_with_its_matrix(n: int) -> None:
    x, matrix = random(3, 5, 2 * n), hadamard_matrix(n)
    expected = (x.reshape(-1, n) @ matrix).reshape(x.shape)
    np.testing.assert_allclose(compute(gg.hadamard, x, matrix), expected, rtol=1e-4, atol=1e-5)


def test_the_hadamard_rotation_is_its_own_inverse() -> None:
    x, matrix = random(3, 128), hadamard_matrix(64)
    twice = compute(lambda t, m: gg.hadamard(gg.hadamard(t, m), m), x, matrix)
    np.testing.assert_allclose(twice, x, rtol=1e-4, atol=1e-5)


def test_computed_ids_beyond_the_experts_are_limited() -> None:
    experts, x = random(2, 4, 8), random(3, 1, 8)
    scores = np.array([[0, 1, 9], [0, 9, 1], [9, 0, 1]], np.float32)  # the best places are 2, 1 and 0
    y = with_weights(
        lambda x, scores, e: gg.mul_mat_id(e, x, gg.top_k(scores, 1)), {"x": x, "scores": scores}, e=experts
    )
    np.testing.assert_allclose(
        y, np.einsum("toi,ti->to", experts[[1, 1, 0]], x[:, 0])[:, None], rtol=1e-5, atol=1e-6
    )


REFUSED = [
    (lambda g, x: gg.mul_mat(g.input("w", (3, 7)), x), "the last dimensions must be equal"),
    (lambda g, x: gg.mul_mat(g.input("w", (3, 4, 8)), x), "outer dimensions of the first must divide"),
    (lambda g, x: gg.mul_mat(g.input("w", (8, 3)).T, x), r"rows have gaps; use \.cont\(\)"),
    (lambda g, x: gg.mul_mat(g.input("w", (3, 8), "i32"), x), "i32 is not among"),
    (
        lambda g, x: gg.mul_mat(g.input("w", (3, 8)), g.input("h", (4, 8), "f16")),
        "f16 is not among bf16, f32",
    ),
    (lambda g, x: g.weight(np.ones((32, 32)), type="q8_0").T + x, "can only stand on the right of @"),
    (lambda g, x: x @ np.ones((8, 3)), None),
    (lambda g, x: gg.hadamard(x, g.input("m", (3, 3))), "a power of two"),
    (lambda g, x: gg.hadamard(x, g.input("m", (16, 16))), "the matrix must divide the rows"),
    (
        lambda g, x: gg.mul_mat_id(g.input("e", (2, 3, 8)), x.reshape(4, 1, 8), g.input("i", (3, 1), "i32")),
        "do not match",
    ),
    (
        lambda g, x: gg.mul_mat_id(g.input("e", (2, 3, 8)), x.reshape(4, 1, 8), g.input("i", (4, 1))),
        "f32 is not among i32",
    ),
    (
        lambda g, x: gg.add_id(x.reshape(4, 1, 8), g.input("b", (2, 7)), g.input("i", (4, 1), "i32")),
        "tokens, ids or lengths do not match",
    ),
    (
        lambda g, x: gg.mul_mat_id(g.input("e", (2, 3, 7)), x.reshape(4, 1, 8), g.input("i", (4, 1), "i32")),
        "must be equal",
    ),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[str(words) for _, words in REFUSED])
def test_what_does_not_fit_is_refused_with_the_reason(build: Any, words: str | None) -> None:
    error = pytest.raises(gg.ShapeError, match=words) if words else pytest.raises(TypeError)
    with gg.Graph(cpu()) as g, error:
        build(g, g.input("x", (4, 8)))


def test_tensors_of_two_graphs_do_not_mix() -> None:
    with (
        gg.Graph(cpu()) as g,
        gg.Graph(cpu()) as other,
        pytest.raises(gg.ShapeError, match="a node of another graph"),
    ):
        g.input("x", (4, 8)) + other.input("x", (4, 8))
