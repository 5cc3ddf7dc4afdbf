"""Rows of tables by number, read and written, and numbers that are no rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import compute, cpu, random, stored, with_weights

import pyggml as gg

IDS = np.array([3, 0, 3, 6], np.int32)


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_k", "q6_k", "iq4_nl", "mxfp4"])
def test_rows_of_every_type_are_read_as_float32(kind: str) -> None:
    table = random(7, 256)
    y = with_weights(lambda ids, t: gg.get_rows(t, ids), {"ids": IDS}, t=(table, kind))
    np.testing.assert_array_equal(y, stored(table, kind)[IDS])


def test_rows_of_integers_stay_integers() -> None:
    table = np.arange(14, dtype=np.int32).reshape(7, 2)
    y = compute(gg.get_rows, table, IDS)
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, table[IDS])


def test_each_matrix_of_a_batch_has_its_own_ids() -> None:
    table, ids = random(2, 3, 7, 4), np.random.default_rng(0).integers(0, 7, (2, 3, 5)).astype(np.int32)
    expected = np.take_along_axis(table, ids[..., None], 2)
    np.testing.assert_array_equal(compute(gg.get_rows, table, ids), expected)


@pytest.mark.parametrize("ids", [np.array([4, 1], np.int32), np.array([4, 1], np.int64)])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q5_1", "iq4_nl"])
def test_rows_written_into_a_state_stay_there(kind: str, ids: np.ndarray) -> None:
    rows = random(2, 64)
    with gg.Graph(cpu()) as g:
        table = g.state("table", (6, 64), kind)
        g.do(gg.set_rows(table, g.input("rows", rows.shape), g.input("ids", ids.shape, ids.dtype)))
        g.run(rows=rows, ids=ids)
        expected = np.zeros((6, 64), np.float32)
        expected[ids] = stored(rows, kind)
        near = 0 if kind in ("f32", "f16", "bf16") else np.abs(rows).max() / 7
        np.testing.assert_allclose(table.numpy(), expected, atol=near)


def test_a_table_read_through_the_writing_has_the_new_rows() -> None:
    with gg.Graph(cpu()) as g:
        table = g.state("table", (6, 4))
        written = gg.set_rows(table, g.input("rows", (2, 4)), g.input("ids", (2,), "i32"))
        g.output("sum", gg.sum_rows(written.reshape(1, 24)))
        for i in range(3):
            assert g.run(rows=np.ones((2, 4)), ids=[2 * i, 2 * i + 1])["sum"] == 8 * (i + 1)


def test_a_batch_of_tables_may_share_ids() -> None:
    rows = random(3, 2, 4)
    with gg.Graph(cpu()) as g:
        table = g.state("table", (3, 5, 4))
        g.do(gg.set_rows(table, g.input("rows", rows.shape), g.input("ids", (1, 2), "i32")))
        g.run(rows=rows, ids=[[4, 0]])
        np.testing.assert_array_equal(table.numpy()[:, [4, 0]], rows)


@pytest.mark.parametrize("bad", [7, -1, 2**31 - 1])
def test_an_input_that_is_no_row_is_refused_before_the_run(bad: int) -> None:
    with gg.Graph(cpu()) as g:
        g.output("y", gg.get_rows(g.weight(random(7, 4)), g.input("ids", (2,), "i32")))
        with pytest.raises(gg.ShapeError, match=rf"input 'ids' holds {bad}; the rows are 0 to 6"):
            g.run(ids=[1, bad])
        assert g.run(ids=[1, 6])["y"].shape == (2, 4)


def test_a_step_refuses_bad_rows_as_well() -> None:
    with gg.Graph(cpu()) as g:
        state = g.state("table", (7, 4))
        g.do(gg.set_rows(state, g.weight(random(1, 4)), g.input("ids", (1,), "i64")))
        g.feeds["ids"][0] = 2**40
        with pytest.raises(gg.ShapeError, match=f"input 'ids' holds {2**40}; the rows are 0 to 6"):
            g.step()


@pytest.mark.parametrize(
    "move",
    [
        lambda i: i[1:],
        lambda i: i.reshape(4, 1)[:, 0].cont(),
        lambda i: gg.concat(i, i, 0),
        lambda i: gg.repeat(i, (8,)),
    ],
    ids=["slice", "reshape", "concat", "repeat"],
)
def test_an_input_is_checked_also_where_its_numbers_were_moved(move: Any) -> None:
    with gg.Graph(cpu()) as g:
        g.output("y", gg.get_rows(g.weight(random(7, 4)), move(g.input("ids", (4,), "i32"))))
        with pytest.raises(gg.ShapeError, match="input 'ids' holds 7"):
            g.run(ids=[1, 2, 7, 3])


def test_an_input_for_two_tables_is_checked_against_the_smaller_one() -> None:
    with gg.Graph(cpu()) as g:
        ids = g.input("ids", (1,), "i32")
        g.output("y", gg.get_rows(g.weight(random(7, 4)), ids) + gg.get_rows(g.weight(random(3, 4)), ids))
        with pytest.raises(gg.ShapeError, match="the rows are 0 to 2"):
            g.run(ids=[3])


def test_places_found_on_the_device_choose_rows_without_another_node() -> None:
    with gg.Graph(cpu()) as g:
        scores = g.input("scores", (3, 7))
        g.output("y", gg.get_rows(g.weight(random(7, 4)), gg.argmax(scores)))
        assert g.n_nodes == 2


def test_computed_numbers_are_limited_to_the_table() -> None:
    table, numbers = random(7, 4), np.array([-5, 2, 6, 1e9], np.float32)
    y = with_weights(lambda n, t: gg.get_rows(t, n.cast("i32")), {"n": numbers}, t=table)
    np.testing.assert_array_equal(y, table[[0, 2, 6, 6]])


def test_the_state_of_a_graph_may_choose_rows() -> None:
    table = random(7, 4)
    with gg.Graph(cpu()) as g:
        last = g.state("last", (1,), "i32")
        row = gg.get_rows(g.weight(table), last)
        g.output("y", row)
        g.do(gg.copy(gg.argmax(g.input("scores", (1, 7))), last))
        g.run(scores=np.eye(7)[5:6])
        np.testing.assert_array_equal(g.run(scores=np.eye(7)[2:3])["y"], table[5:6])


REFUSED = [
    (lambda g, x: gg.get_rows(x, g.input("i", (2,))), "f32 is not among i32"),
    (lambda g, x: gg.get_rows(x, g.input("i", (2, 2), "i32")), "outer dimensions differ"),
    (lambda g, x: gg.get_rows(x.T, g.input("i", (2,), "i32")), "rows have gaps"),
    (
        lambda g, x: gg.set_rows(x, g.input("r", (1, 8)), g.input("i", (1,), "i32")),
        "weights and inputs are only read",
    ),
    (
        lambda g, x: gg.set_rows(g.weight(random(4, 8)), x, g.input("i", (4,), "i32")),
        "weights and inputs are only read",
    ),
    (lambda g, x: gg.set_rows(g.state("s", (9, 8)), x, g.input("i", (3,), "i32")), "lengths differ"),
    (lambda g, x: gg.set_rows(g.state("s", (9, 8), "i32"), x, g.input("i", (4,), "i32")), "i32 is not among"),
]


@pytest.mark.parametrize(("build", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_refused_with_the_reason(build: Any, words: str) -> None:
    with gg.Graph(cpu()) as g, pytest.raises(gg.ShapeError, match=words):
        build(g, g.input("x", (4, 8)))
