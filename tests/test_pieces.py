"""How a segment of a graph is cut into launches: runs of our kernels, and what a sum over ranks can add by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fused_graphs import matrix, norm
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
