"""Numbers that choose rows: where they come from, and that they cannot leave their table.

A device does not look: a row outside of the table ends the process or reads foreign memory. So numbers that the caller
sets are checked as they are sent, and numbers whose bound is not known are limited on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._ffi import lib
from .operands import graph_of, need
from .ops import clamp
from .shapes import cast
from .tensor import Tensor

# These move numbers and make no new ones.
_MOVES = {
    lib.GGML_OP_VIEW: 1,
    lib.GGML_OP_RESHAPE: 1,
    lib.GGML_OP_PERMUTE: 1,
    lib.GGML_OP_CONT: 1,
    lib.GGML_OP_REPEAT: 1,
    lib.GGML_OP_GET_ROWS: 1,
    lib.GGML_OP_CONCAT: 2,
}
_PLACES = (lib.GGML_OP_ARGMAX, lib.GGML_OP_ARGSORT)  # results are places in a row of their operand
_EXACT = 2**24  # float32 counts that far


def bounded(op: str, ids: Tensor, n_rows: int, *others: Tensor, are_distinct: bool = False) -> Tensor:
    """The ids, made safe for a table of `n_rows` rows.

    Inputs are checked in every run, places found by argmax and top_k in such rows are right as they are, others are
    limited to 0 to n_rows - 1 by nodes that are added here. With are_distinct, rows of inputs hold no number twice.
    """
    graph = graph_of(ids, *others)
    inputs = []
    for source in _sources(ids.handle):
        if source.op in _PLACES and source.src[0].ne[0] <= n_rows:
            continue
        if not graph.is_input(source):
            return _limited(op, ids, n_rows)
        inputs.append(source)
    for source in inputs:
        is_row = are_distinct and source.ne[0] == ids.handle.ne[0]
        graph.limit_input(source, n_rows, int(source.ne[0]) if is_row else 1)
    return ids


def _sources(handle: Any) -> Iterator[Any]:
    waiting = [handle]
    while waiting:
        tensor = waiting.pop()
        n_moved = _MOVES.get(tensor.op, 0)
        waiting += [tensor.src[i] for i in range(n_moved)]
        if n_moved == 0:
            yield tensor


def _limited(op: str, ids: Tensor, n_rows: int) -> Tensor:
    need(ids.dtype.name == "i32", op, ids, because="ids of this type must be inputs")
    need(n_rows <= _EXACT, op, ids, because=f"computed ids can choose among {_EXACT} rows at most")
    return cast(clamp(cast(ids, "f32"), 0, n_rows - 1), "i32")
