"""A graph that is laid out once sees other rows of a state, and fewer, from run to run."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as gg
from pyggml.errors import ShapeError

N_SLOTS, N_ROWS, N_HEAD, HEAD_DIM = 3, 512, 2, 64
LONGEST = N_ROWS


class Attention:
    """A state of keys and values with one window on it, as a model's cache has; `reads` adds another reader."""

    def __init__(self, backend: gg.Backend, *, kind: str = "f16", reads: bool = False, slot0: int = 0) -> None:
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((N_SLOTS * N_ROWS, N_HEAD * HEAD_DIM)).astype(np.float32)
        self.graph = g = gg.Graph(backend)
        table = g.weight(self.rows, type=kind)
        row = table.strides[0]
        head = row // N_HEAD
        step = N_ROWS * row
        window = gg.view(table, (1, LONGEST, N_HEAD, HEAD_DIM), (step, row, head), slot0 * step)
        kv = g.let_move(window, 1, step=step).permute(0, 2, 1, 3)
        q = g.input("q", (1, N_HEAD, 1, HEAD_DIM))
        mask = g.let_move(g.input("mask", (1, 1, 1, LONGEST), "f16"), 3)
        g.output("y", gg.flash_attn(q, kv, kv, mask, scale=0.125))
        if reads:
            g.output("sum", kv.cont())
        self.q = rng.standard_normal((1, N_HEAD, 1, HEAD_DIM)).astype(np.float32)

    def run(self, n_seen: int) -> np.ndarray:
        """The answer with the first n_seen rows of the window visible."""
        mask = np.full(self.graph.feeds["mask"].shape, -np.inf, np.float16)
        mask[..., :n_seen] = 0
        return self.graph.run(q=self.q, mask=mask)["y"].reshape(N_HEAD, HEAD_DIM)

    def right(self, slot: int, n_seen: int) -> np.ndarray:
        """The same by its definition."""
        rows = self.rows[slot * N_ROWS : slot * N_ROWS + n_seen].reshape(n_seen, N_HEAD, HEAD_DIM)
        scores = np.einsum("hd,nhd->hn", self.q[0, :, 0], rows) * 0.125
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.einsum("hn,nhd->hd", weights / weights.sum(axis=1, keepdims=True), rows)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_moved_window_sees_what_lies_there(kind: str) -> None:
    tolerance = 2e-3 if kind == "f16" else 2e-2
    with gg.Backend("cpu") as backend:
        attention = Attention(backend, kind=kind)
        assert attention.graph.window_reader is None
        for slot, length, n_seen in ((0, 512, 500), (2, 256, 200), (1, 256, 256), (1, 512, 400), (0, 256, 3)):
            attention.graph.build()
            attention.graph.move(slot, length)
            assert attention.graph.feeds["mask"].shape == (1, 1, 1, length)
            np.testing.assert_allclose(attention.run(n_seen), attention.right(slot, n_seen), atol=tolerance)
        attention.graph.close()


def test_a_moved_graph_computes_the_bits_of_one_that_was_built_there() -> None:
    with gg.Backend("cpu", threads=1) as backend:
        moved, there = Attention(backend), Attention(backend, slot0=1)
        moved.graph.build()
        moved.graph.move(1, LONGEST)
        np.testing.assert_array_equal(moved.run(300), there.run(300))
        moved.graph.close()
        there.graph.close()


def test_windows_that_something_else_reads_do_not_move() -> None:
    with gg.Backend("cpu") as backend:
        attention = Attention(backend, reads=True)
        attention.graph.build()
        assert attention.graph.window_reader == "CONT"
        with pytest.raises(ShapeError, match="cannot move: CONT"):
            attention.graph.move(1, 256)
        attention.graph.close()


@pytest.mark.parametrize("length", [0, LONGEST + 1])
def test_a_window_has_at_most_the_length_that_was_laid_out(length: int) -> None:
    with gg.Backend("cpu") as backend:
        attention = Attention(backend)
        attention.graph.build()
        with pytest.raises(ShapeError, match="1 to 512"):
            attention.graph.move(0, length)
        attention.graph.close()


@pytest.mark.parametrize("start", [-1, N_SLOTS])
def test_a_window_stays_within_its_state(start: int) -> None:
    with gg.Backend("cpu") as backend:
        attention = Attention(backend)
        attention.graph.build()
        with pytest.raises(ShapeError, match="room for 0 to 2"):
            attention.graph.move(start, LONGEST)
        attention.graph.close()


def test_windows_of_a_graph_have_one_length() -> None:
    with gg.Backend("cpu") as backend, gg.Graph(backend) as g:
        g.let_move(g.input("a", (4, 8)), 1)
        with pytest.raises(ShapeError, match="8 long"):
            g.let_move(g.input("b", (4, 9)), 1)
