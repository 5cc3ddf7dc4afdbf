"""How a segment of a graph is cut into launches: runs of our kernels, and what a sum over ranks can add by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fused_graphs import Case, build, matrix, norm
from graphs import cpu, random

import pyggml as gg
from pyggml._ffi import ffi, lib

N, WIDTH = 2, 512
Addition = Callable[[gg.Graph, gg.Tensor], gg.Tensor]


@pytest.fixture(autouse=True)
def take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_FUSED", "all")


def residual(g: gg.Graph) -> gg.Tensor:
    return g.input("residual", (N, WIDTH))


def pieces_behind(add: Addition, *, is_sum: bool = True, is_kept: bool = False) -> list[tuple[str, str, str]]:
    """Of a partial result and what follows it: each piece's nodes, what it adds and the total's operation."""
    with gg.Graph(cpu()) as g:
        partial = g.do(gg.mul_mat(g.weight(random(WIDTH, WIDTH)), g.input("x", (N, WIDTH))))
        stream = add(g, partial)
        g.output("y", gg.mul_mat(matrix(g, 96, WIDTH, "q8_0", 2), norm(g, stream)))
        g.output("stream", stream * 2.0)
        if is_kept:
            g.output("kept", partial * 3.0)
        g.build()
        nodes = [lib.ggml_graph_node(g._graph, i) for i in range(g.n_nodes)]
        pieces = ffi.new("pg_pieces *", {"graph": g._graph})
        try:
            start = nodes.index(partial.handle) + 1
            assert lib.pg_pieces_add(pieces, start, g.n_nodes, partial.handle if is_sum else ffi.NULL, False)
            found = [pieces.items[i] for i in range(pieces.n)]
            assert [start, *(piece.stop for piece in found)] == [*(piece.first for piece in found), g.n_nodes]
            return [
                (
                    "+".join(name(node) for node in nodes[piece.first : piece.stop]),
                    "residual" if piece.addend and piece.addend == g._inputs.get("residual") else "",
                    name(piece.total) if piece.total else "",
                )
                for piece in found
            ]
        finally:
            lib.pg_pieces_free(pieces)


def name(node: object) -> str:
    return str(ffi.string(lib.ggml_op_desc(node)).decode())


NEXT = ("RMS_NORM+MUL+MUL_MAT", "", "")
REST = ("SCALE", "", "")


@pytest.mark.parametrize("add", [lambda g, y: y + residual(g), lambda g, y: residual(g) + y], ids=["y+r", "r+y"])
def test_a_sum_over_ranks_adds_the_residual_stream(add: Addition) -> None:
    assert pieces_behind(add) == [("ADD", "residual", "ADD"), NEXT, REST]


def test_a_partial_result_that_others_read_is_no_mere_summand() -> None:
    found = pieces_behind(lambda g, y: y + residual(g), is_kept=True)
    assert found[0] == ("ADD+RMS_NORM+MUL+MUL_MAT", "", "")


def test_without_a_sum_there_is_no_total() -> None:
    assert all(total == "" for *_, total in pieces_behind(lambda g, y: y + residual(g), is_sum=False))


@pytest.mark.parametrize(
    "add",
    [
        lambda g, y: y + y,
        lambda g, y: y + g.weight(random(WIDTH)),
        lambda g, y: y * residual(g),
        lambda g, y: gg.rms_norm(y, 1e-5) + residual(g),
    ],
    ids=["itself", "a row", "product", "normed"],
)
def test_what_is_no_sum_of_two_like_tensors_is_left_alone(add: Addition) -> None:
    assert all(total == "" for *_, total in pieces_behind(add))


class Layer:
    """Behind a partial result of attention: gate, up and down, and the next layer's first product."""

    def __init__(self, g: gg.Graph) -> None:
        self.partial = g.do(gg.mul_mat(g.weight(random(WIDTH, WIDTH)), g.input("x", (1, WIDTH))))
        stream = self.partial + residual_row(g)
        x = norm(g, stream)
        gate, up = (gg.mul_mat(matrix(g, 512, WIDTH, "q8_0", seed), x) for seed in (3, 4))
        self.down = g.do(gg.mul_mat(matrix(g, WIDTH, 512, "q8_0", 5), gg.swiglu(gate, up)))
        g.output("y", gg.mul_mat(matrix(g, 96, WIDTH, "q8_0", 2), norm(g, self.down + stream)))
        g.output("stream", stream * 2.0)
        g.build()


def residual_row(g: gg.Graph) -> gg.Tensor:
    return g.input("residual", (1, WIDTH))


def neighbours(first: str, stop: str, *, sum_is_ours: bool) -> list[tuple[str, bool, bool, bool]]:
    """Of the fused runs between two summands of a layer: whether each is before ours, behind ours and before a sum."""
    with gg.Graph(cpu()) as g:
        layer = Layer(g)
        nodes = [lib.ggml_graph_node(g._graph, i) for i in range(g.n_nodes)]
        places = {"partial": nodes.index(layer.partial.handle) + 1, "down": nodes.index(layer.down.handle) + 1}
        pieces = ffi.new("pg_pieces *", {"graph": g._graph})
        try:
            summed = getattr(layer, first).handle if sum_is_ours else ffi.NULL
            is_before_sum = sum_is_ours and stop in places
            assert lib.pg_pieces_add(pieces, places[first], places.get(stop, g.n_nodes), summed, is_before_sum)
            found = [pieces.items[i] for i in range(pieces.n) if pieces.items[i].is_fused]
            return [
                (
                    name(nodes[piece.stop - 1]),
                    piece.fused.is_before_ours,
                    piece.fused.is_behind_ours,
                    piece.fused.is_before_sum,
                )
                for piece in found
            ]
        finally:
            lib.pg_pieces_free(pieces)


def test_a_launch_knows_what_comes_before_and_behind_it() -> None:
    gate, down = neighbours("partial", "down", sum_is_ours=True)
    assert gate == ("SWIGLU", True, True, False)
    assert down == ("MUL_MAT", True, True, True)
    (product,) = neighbours("down", "end", sum_is_ours=True)
    assert product == ("MUL_MAT", False, True, False)


def test_a_sum_of_another_transport_is_no_launch_of_ours() -> None:
    gate, down = neighbours("partial", "down", sum_is_ours=False)
    assert gate[1:] == (True, False, False)
    assert down[1:] == (False, True, False)


def test_attention_and_the_product_behind_a_view_of_it_are_neighbours() -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case("heads-attends-product"))
        g.build()
        pieces = ffi.new("pg_pieces *", {"graph": g._graph, "may_attend": True})
        try:
            assert lib.pg_pieces_add(pieces, 0, g.n_nodes, ffi.NULL, False)
            attention, product = [pieces.items[i].fused for i in range(pieces.n) if pieces.items[i].is_fused]
            assert attention.heads.attention != ffi.NULL and not product.has_heads
            assert attention.is_before_ours and product.is_behind_ours
        finally:
            lib.pg_pieces_free(pieces)
