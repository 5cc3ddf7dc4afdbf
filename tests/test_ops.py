"""Arithmetic, activations, norms and reductions against numpy; every operation with random operands."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import compute, cpu, random, stored

import pyggml as gg

FUZZ = Path(__file__).with_name("op_fuzz.py")
SHAPES = [(5,), (3, 64), (2, 3, 33), (2, 1, 3, 7)]
NEAR = {"f32": 2e-6, "f16": 2e-3, "bf16": 2e-2}


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def norm(x: np.ndarray, eps: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


UNARY = {
    "neg": np.negative,
    "sqr": np.square,
    "exp": np.exp,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": gelu,
    "silu": silu,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "log": lambda x: np.log(np.abs(x) + 1),
}
OF_POSITIVE = {"sqrt": np.abs, "log": lambda x: np.abs(x) + 1}


@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary_operations_equal_numpy(name: str, shape: tuple[int, ...], kind: str) -> None:
    x = stored(OF_POSITIVE.get(name, lambda x: x)(random(*shape)), kind)
    y = compute(getattr(gg, name), x, kinds=[kind])
    expected = UNARY[name](random(*shape) if name in OF_POSITIVE else x)
    near = 2e-3 if name == "gelu" else NEAR[kind]  # ggml's gelu is a table of float16
    np.testing.assert_allclose(y, expected, rtol=near * 4, atol=near)


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
REPEATED = [
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 4), (3, 1)),
    ((3, 4), (1,)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 1)),
    ((2, 3, 5, 4), (2, 1, 5, 1)),
    ((2, 3, 5, 4), (3, 1, 4)),
]


@pytest.mark.parametrize(("large", "small"), REPEATED, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_the_second_operand_is_broadcast_as_in_numpy(
    name: str, large: tuple[int, ...], small: tuple[int, ...]
) -> None:
    a, b = random(*large), random(*small) + 3
    np.testing.assert_allclose(compute(getattr(gg, name), a, b), BINARY[name](a, b), rtol=1e-6)


@pytest.mark.parametrize(("large", "small"), REPEATED, ids=str)
@pytest.mark.parametrize("name", ["add", "mul"])
def test_the_first_operand_may_be_the_smaller_one_where_order_does_not_matter(
    name: str, large: tuple[int, ...], small: tuple[int, ...]
) -> None:
    a, b = random(*small), random(*large)
    np.testing.assert_allclose(compute(getattr(gg, name), a, b), BINARY[name](a, b), rtol=1e-6)


def test_a_small_operand_is_repeated_as_often_as_fits() -> None:
    a, b = random(4, 6), random(2, 3)
    np.testing.assert_allclose(compute(gg.add, a, b), a + np.tile(b, (2, 2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("first", "second"), [("f16", "f16"), ("bf16", "bf16"), ("f16", "f32"), ("bf16", "f32")]
)
@pytest.mark.parametrize("name", BINARY)
def test_half_precision_operands_keep_the_larger_ones_type(name: str, first: str, second: str) -> None:
    a, b = stored(random(3, 8), first), stored(random(8) + 3, second)

    def build(x: gg.Tensor, y: gg.Tensor) -> gg.Tensor:
        z = getattr(gg, name)(x, y)
        assert z.dtype.name == first
        return z

    np.testing.assert_allclose(
        compute(build, a, b, kinds=[first, second]), BINARY[name](a, b), rtol=2 * NEAR[first]
    )


NUMBERS = {
    "x + 2": lambda x: x + 2,
    "2 + x": lambda x: 2 + x,
    "x - 2.5": lambda x: x - 2.5,
    "2.5 - x": lambda x: 2.5 - x,
    "x * 3": lambda x: x * 3,
    "3 * x": lambda x: np.float32(3) * x,
    "x / 4": lambda x: x / 4,
    "4 / x": lambda x: 4 / x,
    "-x": lambda x: -x,
}


@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize("words", NUMBERS)
def test_operators_take_numbers_on_both_sides(words: str, kind: str) -> None:
    x = stored(np.abs(random(3, 8)) + 1, kind)
    np.testing.assert_allclose(
        compute(NUMBERS[words], x, kinds=[kind]), NUMBERS[words](x), rtol=3 * NEAR[kind]
    )


def test_arithmetic_with_numbers_takes_no_device_memory() -> None:
    with gg.Graph(cpu()) as g:
        x = g.input("x", (4,))
        g.output("y", 2 * x + 1)
        assert g.n_nodes == 2


def test_numbers_work_on_rows_with_gaps() -> None:
    x = random(4, 6)
    np.testing.assert_allclose(compute(lambda t: t[:, 1:3] * 2 + 1, x), x[:, 1:3] * 2 + 1, rtol=1e-6)


def test_dividing_by_zero_is_infinity_as_in_numpy() -> None:
    assert compute(lambda x: x / 0, np.array([1, -1], np.float32)).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "function"), [("norm", norm), ("rms_norm", rms_norm)])
def test_norms_are_of_rows(name: str, function: Any, shape: tuple[int, ...]) -> None:
    x = random(*shape)
    y = compute(lambda t: getattr(gg, name)(t, 1e-3), x)
    np.testing.assert_allclose(y, function(x, 1e-3), rtol=1e-5, atol=1e-6)


def test_a_norm_and_the_weight_that_follows_are_as_each_alone() -> None:
    x, w = random(3, 8), random(8, seed=1)
    np.testing.assert_allclose(
        compute(lambda a, b: gg.rms_norm(a) * b, x, w), rms_norm(x, 1e-5) * w, rtol=1e-5
    )


@pytest.mark.parametrize("kind", NEAR)
@pytest.mark.parametrize(("name", "function"), [("swiglu", silu), ("geglu", gelu)])
def test_gated_units_multiply_the_activated_gate(name: str, function: Any, kind: str) -> None:
    gate, up = stored(random(2, 3, 16), kind), stored(random(2, 3, 16, seed=1), kind)
    near = max(NEAR[kind], 2e-3 * (name == "geglu"))
    y = compute(getattr(gg, name), gate, up, kinds=[kind, kind])
    np.testing.assert_allclose(y, function(gate) * up, rtol=4 * near, atol=near)


def test_limited_gated_units_add_one_to_the_other_half() -> None:
    gate, up = 6 * random(2, 3, 16), 6 * random(2, 3, 16, seed=1)
    low, within = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
    expected = low / (1 + np.exp(-1.702 * low)) * (within + 1)
    assert (gate > 7).any() and (np.abs(up) > 7).any()
    np.testing.assert_allclose(compute(gg.swiglu_oai, gate, up), expected, rtol=1e-5, atol=1e-5)


def test_gated_units_take_halves_of_one_matrix() -> None:
    x = random(5, 32)
    np.testing.assert_allclose(
        compute(lambda t: gg.swiglu(t[:, :16], t[:, 16:]), x),
        silu(x[:, :16]) * x[:, 16:],
        rtol=1e-5,
        atol=1e-6,
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_sum_rows_keeps_the_dimension(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    np.testing.assert_allclose(compute(gg.sum_rows, x), x.sum(-1, keepdims=True), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_clamp_leaves_its_operand_as_it_is(kind: str) -> None:
    x = stored(random(4, 8), kind)
    both = compute(lambda t: gg.concat(gg.clamp(t, -0.5, 0.5), t, 0), x, kinds=[kind])
    np.testing.assert_array_equal(both, np.concatenate([stored(np.clip(x, -0.5, 0.5), kind), x]))


def test_clamp_takes_rows_in_any_order() -> None:
    x = random(4, 8)
    np.testing.assert_array_equal(compute(lambda t: gg.clamp(t.T, -0.5, np.inf), x), np.clip(x.T, -0.5, None))


@pytest.mark.parametrize("shape", [(7,), (5, 33)])
def test_argmax_finds_the_largest_of_each_row(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    assert compute(gg.argmax, x).tolist() == np.atleast_1d(x.argmax(-1)).tolist()


@pytest.mark.parametrize("k", [1, 3, 33])
@pytest.mark.parametrize("shape", [(33,), (5, 33), (2, 3, 33)])
def test_top_k_is_sorted(shape: tuple[int, ...], k: int) -> None:
    x = random(*shape)
    np.testing.assert_array_equal(compute(lambda t: gg.top_k(t, k), x), np.argsort(-x, -1)[..., :k])


def test_top_k_of_equal_elements_gives_different_places() -> None:
    x = np.round(random(6, 64))
    places = compute(lambda t: gg.top_k(t, 40), x)
    np.testing.assert_array_equal(np.take_along_axis(x, places, -1), -np.sort(-x, -1)[:, :40])
    assert all(len(set(row)) == 40 for row in places.tolist())


REFUSED = [
    (lambda g, x: gg.add(x, g.input("i", (8,), "i32")), "must have the other's type or be f32"),
    (lambda g, x: x + g.input("b", (3,)), "must repeat to the shape of the first"),
    (lambda g, x: gg.sub(g.input("b", (1,)), x), "must repeat to the shape of the first"),
    (lambda g, x: gg.exp(x.T), r"rows have gaps; use \.cont\(\)"),
    (lambda g, x: gg.silu(g.input("i", (8,), "i32")), r"i32 is not among bf16, f16, f32; use \.cast"),
    (lambda g, x: gg.norm(x, -1.0), "eps = -1.0 must be 0 or more"),
    (lambda g, x: gg.rms_norm(x, math.nan), "eps = nan must be 0 or more"),
    (lambda g, x: gg.rms_norm(g.input("h", (4, 8), "f16")), "f16 is not among f32"),
    (lambda g, x: gg.swiglu(x, g.input("u", (4, 7))), "one shape and type"),
    (lambda g, x: gg.swiglu_oai(g.input("h", (4, 8), "f16"), g.input("u", (4, 8), "f16")), "f16 is not among f32"),
    (lambda g, x: gg.argmax(g.input("t", (2, 4, 8))), "it takes a matrix"),
    (lambda g, x: gg.top_k(x, 9), "k = 9 must be 1 to the row's length"),
    (lambda g, x: gg.top_k(x, 0), "k = 0 must be 1 to the row's length"),
    (
        lambda g, x: x + np.ones(8),
        r"add takes tensors and numbers, not ndarray; give arrays to graph\.weight",
    ),
    (lambda g, x: x * "a", "mul takes tensors and numbers, not str"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_a_shape_error_that_says_why(build: Any, words: str) -> None:
    with gg.Graph(cpu()) as g, pytest.raises(gg.ShapeError, match=words):
        build(g, g.input("x", (4, 8)))


def test_messages_name_the_operation_and_the_operands() -> None:
    with (
        gg.Graph(cpu()) as g,
        pytest.raises(gg.ShapeError, match=r"add cannot take \(4, 8\) f32, \(3,\) f32: "),
    ):
        g.input("x", (4, 8)) + g.input("b", (3,))


def test_a_tensor_is_not_iterated_over_and_has_no_truth() -> None:
    with gg.Graph(cpu()) as g:
        x = g.input("x", (4, 8))
        for use in (iter, bool):
            with pytest.raises(TypeError):
                use(x)


@pytest.mark.timeout(300)
def test_no_operands_end_the_process() -> None:
    """Thousands of random operands: each graph runs or is refused by an error of ours."""
    child = subprocess.run(
        [sys.executable, str(FUZZ), "7", "120"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    assert child.returncode == 0, child.stderr[-2000:]
    ran = {line.split()[0]: int(re.search(r"\bran=(\d+)", line)[1]) for line in child.stdout.splitlines()}
    assert len(ran) > 40
    assert min(ran.values()) >= 12, ran
