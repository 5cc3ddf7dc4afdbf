"""What moves numbers without computing any: copies, types, reshape, permute, views, slices, concat, repeat."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from graphs import compute, cpu, random, stored, with_weights

import pyggml as gg

SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize("axes", list(itertools.permutations(range(4))), ids=str)
def test_permute_orders_axes_as_numpys_transpose(axes: tuple[int, ...]) -> None:
    x = random(*SHAPE)
    y = compute(lambda t: t.permute(*axes).cont(), x)
    np.testing.assert_array_equal(y, x.transpose(axes))


@pytest.mark.parametrize("axes", [p for n in (1, 2, 3) for p in itertools.permutations(range(n))], ids=str)
def test_permute_takes_fewer_axes(axes: tuple[int, ...]) -> None:
    x = random(*SHAPE[: len(axes)])
    np.testing.assert_array_equal(compute(lambda t: t.permute(*axes), x), x.transpose(axes))


def test_permute_may_add_dimensions_in_front() -> None:
    x = random(3, 4)
    assert compute(lambda t: gg.permute(t, (1, 0, 2)), x[None]).shape == (3, 1, 4)
    assert compute(lambda t: gg.permute(t, (0, 1, 2, 3)), x).shape == (1, 1, 3, 4)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i8", "i16", "i32", "i64", "f64"])
def test_contiguous_copies_of_every_plain_type(kind: str) -> None:
    x = np.round(random(3, 4, 5) * 9)
    y = compute(lambda t: t.permute(2, 0, 1).cont(), x, kinds=[kind])
    np.testing.assert_array_equal(y, x.transpose(2, 0, 1))


SLICES = [
    np.s_[1:],
    np.s_[:, 1:3],
    np.s_[..., 1:4],
    np.s_[0],
    np.s_[-1],
    np.s_[:, 2],
    np.s_[:, :, 1],
    np.s_[..., 0],
    np.s_[..., -1],
    np.s_[1, 2],
    np.s_[1, :, 3],
    np.s_[0, ..., 2],
    np.s_[:, 1, 2, :],
    np.s_[1, 2, 3],
    np.s_[1:2, 0:2, 2:, 1:3],
    np.s_[...],
    np.s_[-2:, np.int64(1)],
]


@pytest.mark.parametrize("index", SLICES, ids=str)
def test_slicing_is_numpys(index: Any) -> None:
    x = random(*SHAPE)
    y = compute(lambda t: t[index], x)
    assert y.shape == x[index].shape
    np.testing.assert_array_equal(y, x[index])


def test_one_dimension_stays_when_all_are_indexed() -> None:
    assert compute(lambda t: t[2], np.arange(4, dtype=np.float32)).tolist() == [2.0]


def test_quantised_rows_are_cut_on_blocks() -> None:
    w = random(4, 128)
    y = with_weights(
        lambda x, w: w[1:3, 32:96].cast("f32") + x, {"x": np.zeros((1,), np.float32)}, w=(w, "q8_0")
    )
    np.testing.assert_array_equal(y, stored(w, "q8_0")[1:3, 32:96])


@pytest.mark.parametrize("shape", [(6, 20), (-1, 5), (120,), (2, -1, 2, 3), (4, 30)], ids=str)
def test_reshape_keeps_the_order_of_elements(shape: tuple[int, ...]) -> None:
    x = random(*SHAPE)
    np.testing.assert_array_equal(compute(lambda t: t.reshape(*shape), x), x.reshape(shape))


def test_views_look_at_windows_by_strides() -> None:
    x = np.arange(64, dtype=np.float32)
    y = compute(lambda t: gg.view(t, (3, 2, 4), (80, 32), 16), x)
    np.testing.assert_array_equal(y, np.lib.stride_tricks.as_strided(x[4:], (3, 2, 4), (80, 32, 4)))


def test_windows_may_overlap() -> None:
    x = np.arange(64, dtype=np.float32)
    y = compute(lambda t: gg.view(t, (5, 4), (4,)), x)
    np.testing.assert_array_equal(y, np.lib.stride_tricks.sliding_window_view(x, 4)[:5])


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2])
@pytest.mark.parametrize("kind", ["f32", "f16", "i32", "i64", "i8"])
def test_concat_along_every_axis(kind: str, axis: int) -> None:
    shape = list(SHAPE)
    shape[axis] = 2
    a, b = np.round(random(*SHAPE) * 9), np.round(random(*shape, seed=1) * 9)
    y = compute(lambda s, t: gg.concat(s, t, axis), a, b, kinds=[kind, kind])
    np.testing.assert_array_equal(y, np.concatenate([a, b], axis))


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 3, 4, 5), (2, 6, 8, 10), (2, 3, 4, 15)], ids=str)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "i16", "i32"])
def test_repeat_fills_a_shape(kind: str, shape: tuple[int, ...]) -> None:
    x = np.round(random(*SHAPE) * 9)
    expected = np.tile(x, [n // m for n, m in zip(shape, SHAPE)])
    np.testing.assert_array_equal(compute(lambda t: gg.repeat(t, shape), x, kinds=[kind]), expected)


FLOATS = ("f32", "f16", "bf16")


@pytest.mark.parametrize("to", [*FLOATS, "q8_0", "q4_0", "q6_k"])
@pytest.mark.parametrize("source", FLOATS)
def test_floats_turn_into_floats_and_quantised_types(source: str, to: str) -> None:
    x = stored(random(3, 256), source)
    y = compute(lambda t: t.cast(to).cast("f32"), x, kinds=[source])
    near = {"f32": 0, "f16": 0, "bf16": 0, "q8_0": 0.03, "q6_k": 0.1}.get(to, 0.5)
    np.testing.assert_allclose(y, stored(x, to), atol=near)


@pytest.mark.parametrize("kind", ["q8_0", "q4_k", "iq4_xs", "mxfp4", "tq2_0"])
def test_quantised_weights_turn_into_float32(kind: str) -> None:
    w = random(3, 256)
    y = with_weights(lambda x, w: w.cast("f32") + x, {"x": np.zeros(1, np.float32)}, w=(w, kind))
    np.testing.assert_array_equal(y, stored(w, kind))


def test_integers_and_floats_turn_into_each_other() -> None:
    x = np.array([-3, 0, 7, 2**20], np.float32)
    assert compute(lambda t: t.cast("i32"), x).tolist() == x.tolist()
    assert compute(lambda t: t.cast("f32"), x.astype(np.int32)).tolist() == x.tolist()


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_copy_writes_into_a_state(kind: str) -> None:
    x = random(4, 64)
    with gg.Graph(cpu()) as g:
        state = g.state("s", (4, 64), kind)
        g.do(gg.copy(g.input("x", x.shape), state))
        g.run(x=x)
        np.testing.assert_allclose(state.numpy(), x, atol=0.03)


def test_copy_writes_into_a_part_of_a_state() -> None:
    x = random(2, 3)
    with gg.Graph(cpu()) as g:
        state = g.state("s", (4, 8))
        g.do(gg.copy(g.input("x", x.shape), state[1:3, 2:5]))
        g.run(x=x)
        expected = np.zeros((4, 8), np.float32)
        expected[1:3, 2:5] = x
        np.testing.assert_array_equal(state.numpy(), expected)


def quantised(g: gg.Graph) -> gg.Tensor:
    return g.weight(random(32, 64), type="q8_0")


REFUSED = [
    (lambda g, x: x.reshape(3, 9), "has another number of elements"),
    (lambda g, x: x.reshape(-1, 5), "has another number of elements"),
    (lambda g, x: x.reshape(-1, -1), "lengths must be 1 or more"),
    (lambda g, x: x.T.reshape(4, 8), r"not contiguous; use \.cont\(\)"),
    (lambda g, x: quantised(g).reshape(128, 16), "not whole blocks"),
    (lambda g, x: x.permute(0, 0), "is no order of its axes"),
    (lambda g, x: x.permute(0), "is no order of its axes"),
    (lambda g, x: quantised(g).permute(1, 0), "blocks of a row stay together"),
    (lambda g, x: quantised(g)[:, 1:33], "cut only every 32 elements"),
    (lambda g, x: x[4], "index 4 is outside of axis 0"),
    (lambda g, x: x[::2], "step of 1 and a non-empty range"),
    (lambda g, x: x[2:2], "step of 1 and a non-empty range"),
    (lambda g, x: x[0, 0, 0], "3 indices are too many"),
    (lambda g, x: x[None], r"an index is an integer, a slice or \.\.\., not None"),
    (lambda g, x: x[1.5], "an index is an integer"),
    (lambda g, x: gg.view(x, (4, 8), (32,), 4), "the window ends at byte 132 of 128"),
    (lambda g, x: gg.view(x, (4, 8), (33,)), "must be multiples of 4 bytes"),
    (lambda g, x: gg.view(x, (4, 8), (32,), -4), "must be multiples of 4 bytes"),
    (lambda g, x: gg.view(x, (4, 8), ()), "one stride for each dimension but the last"),
    (lambda g, x: gg.view(x, (30, 2), (4,)), "overlapping windows need 240 bytes of 128"),
    (lambda g, x: gg.concat(x, g.input("b", (4, 7)), 0), "only axis 0 may differ"),
    (lambda g, x: gg.concat(x, g.input("b", (4, 8), "f16"), 0), "only axis 0 may differ"),
    (lambda g, x: gg.concat(x, x, 2), "only axis 2 may differ"),
    (lambda g, x: gg.repeat(x, (4, 12)), r"does not divide \(4, 12\)"),
    (lambda g, x: gg.repeat(g.input("b", (4, 8), "i64"), (4, 8)), "i64 is not among"),
    (lambda g, x: x.cast("i64"), "cannot turn f32 into i64; float32 may serve as a step between"),
    (lambda g, x: x.cast("q8_0"), "rows of 8 do not fit q8_0"),
    (lambda g, x: x.reshape(32).cast("q8_1"), "q8_1 is for activations within kernels; use q8_0"),
    (lambda g, x: gg.copy(x, g.state("s", (8, 4))), "the shapes differ"),
    (lambda g, x: gg.copy(x, g.weight(random(4, 8))), "weights and inputs are only read"),
    (lambda g, x: gg.copy(x, g.input("t", (4, 8))), "weights and inputs are only read"),
    (lambda g, x: x.reshape(2**62, 2**62), "at most 2"),
    (lambda g, x: gg.repeat(x, (2**40, 2**40)), "at most 2"),
    (
        lambda g, x: g.phantom("p", (2**30, 2**20), "f32") @ g.phantom("q", (2**30, 2**20), "f32").T,
        "more than 2",
    ),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_refused_with_the_reason(build: Any, words: str) -> None:
    with gg.Graph(cpu()) as g, pytest.raises(gg.ShapeError, match=words):
        build(g, g.input("x", (4, 8)))


def test_a_transposed_matrix_is_a_view_wherever_it_stands() -> None:
    x = random(2, 3, 4)
    np.testing.assert_array_equal(compute(lambda t: t.T.cont(), x), x.swapaxes(-1, -2))
    np.testing.assert_array_equal(compute(lambda t: t.T.cont()[:, 1:], x), x.swapaxes(-1, -2)[:, 1:])
    np.testing.assert_array_equal(compute(lambda t: t.T, x[0, 0]), x[0, 0][:, None])
