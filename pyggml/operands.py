"""What an operation looks at before C sees its operands, and the making of its node.

ggml's own builders, and its kernels after them, end the process on operands that they cannot take. Every such rule is
looked at in Python first, and a ShapeError names the operands and what would do. The rules are those of ggml's CPU
backend, which computes every operation; other devices take less and say so when a graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ._ffi import ffi
from .errors import ShapeError
from .tensor import MAX_ELEMENTS, Tensor

if TYPE_CHECKING:
    from .definition import Definition

FLOATS: tuple[str, ...] = ("f32", "f16", "bf16")


def node(function: Any, ndim: int, *arguments: Tensor | float | None) -> Tensor:
    """Call one of ggml's builders for the graph of its operands; arguments are in C's order, None is NULL."""
    operands = [a for a in arguments if isinstance(a, Tensor)]
    graph = graph_of(*operands)
    handles = [a.handle if isinstance(a, Tensor) else ffi.NULL if a is None else a for a in arguments]
    return Tensor(function(graph.context, *handles), ndim, graph, graph)


def graph_of(*operands: Tensor | None) -> Definition:
    """The graph that the operands belong to; tensors of buffers come along.

    Raises ShapeError when there is none or more than one.
    """
    graph = next((t.graph for t in operands if t is not None and t.graph is not None), None)
    if graph is None:
        raise ShapeError(
            "none of the operands belongs to a graph; begin with graph.input(...) or graph.use(tensor)"
        )
    for t in operands:
        if t is not None and t.graph is not graph:
            graph.adopt(t)
    return graph


def need(condition: bool, op: str, *operands: Tensor, because: str) -> None:
    """Raise ShapeError with the operands' shapes unless the condition holds."""
    if not condition:
        shapes = ", ".join(f"{t.shape} {t.dtype.name}" for t in operands)
        raise ShapeError(f"{op} cannot take {shapes}: {because}")


def need_type(op: str, x: Tensor, kinds: Collection[str]) -> None:
    """Raise ShapeError unless the type is among these."""
    kind = x.dtype.name
    if kind not in kinds:
        need(False, op, x, because=f"{kind} is not among {', '.join(sorted(kinds))}; use .cast(...)")


def need_rows(op: str, *operands: Tensor) -> None:
    """Raise ShapeError unless the elements of each row lie without gaps."""
    for x in operands:
        need(int(x.handle.nb[0]) == x.dtype.type_size, op, x, because="its rows have gaps; use .cont()")


def has_even_rows(x: Tensor) -> bool:
    """Whether the elements of each row lie without gaps, and one stride leads through all rows."""
    ne, nb = x.handle.ne, x.handle.nb
    return bool(nb[0] == x.dtype.type_size and nb[2] == nb[1] * ne[1] and nb[3] == nb[2] * ne[2])


def need_even_rows(op: str, *operands: Tensor) -> None:
    """Raise ShapeError unless one stride leads through all rows, whose elements lie without gaps."""
    for x in operands:
        need(has_even_rows(x), op, x, because="its rows do not lie in order; use .cont()")


def need_contiguous(op: str, *operands: Tensor) -> None:
    """Raise ShapeError unless the operands lie in memory without gaps."""
    for x in operands:
        need(
            x.is_contiguous and int(x.handle.nb[0]) == x.dtype.type_size,
            op,
            x,
            because="it is not contiguous; use .cont()",
        )


def need_size(op: str, lengths: tuple[int, ...], *operands: Tensor) -> None:
    """Raise ShapeError when the result would have more elements than ggml counts."""
    need(math.prod(lengths) <= MAX_ELEMENTS, op, *operands, because="the result has more than 2^56 elements")


def ne_of(t: Tensor) -> tuple[int, int, int, int]:
    """ggml's four lengths, innermost first."""
    ne = t.handle.ne
    return int(ne[0]), int(ne[1]), int(ne[2]), int(ne[3])


def repeats(small: Tensor, large: Tensor) -> bool:
    """Whether copies of the first fill the second."""
    return all(a % b == 0 for a, b in zip(ne_of(large), ne_of(small)))
