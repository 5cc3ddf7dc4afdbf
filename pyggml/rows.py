"""Rows of a table by number: reading and writing them."""

from __future__ import annotations

from ._ffi import lib
from .operands import ne_of, need, need_rows, need_size, need_type, node
from .row_ids import bounded
from .shapes import need_writable
from .tensor import MATRIX_TYPES, Tensor

_FROM_FLOAT = MATRIX_TYPES | {"i32"}


def get_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Pick rows by number, as float32, or int32 from an int32 table.

    Shapes: table [..., n_rows, n], ids int32 [..., k] -> [..., k, n]. Ids beyond the table are errors in inputs;
    computed ones are limited to the rows there are.
    """
    a, b = ne_of(table), ne_of(ids)
    need_type("get_rows", table, _FROM_FLOAT)
    need_type("get_rows", ids, ("i32",))
    need(
        a[2] == b[1] and a[3] == b[2] and b[3] == 1, "get_rows", table, ids, because="outer dimensions differ"
    )
    need_rows("get_rows", table, ids)
    need_size("get_rows", (a[0], *b), table, ids)
    ids = bounded("get_rows", ids, a[1], table)
    return node(lib.ggml_get_rows, max(2, table.ndim, ids.ndim + 1), table, ids)


def set_rows(table: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Write rows by number into a state and return it after the writing.

    Shapes: table [..., n_rows, n] float or quantised, rows float32 [..., k, n], ids int32 or int64 [..., k], which are
    checked like those of get_rows.
    """
    t, r, i = ne_of(table), ne_of(rows), ne_of(ids)
    need_type("set_rows", table, MATRIX_TYPES)
    need_type("set_rows", rows, ("f32",))
    need_type("set_rows", ids, ("i32", "i64"))
    need(
        t[0] == r[0] and t[2] == r[2] and t[3] == r[3] and r[1] == i[0],
        "set_rows",
        table,
        rows,
        ids,
        because="lengths differ",
    )
    need(
        r[2] % i[1] == 0 and r[3] % i[2] == 0 and i[3] == 1,
        "set_rows",
        table,
        rows,
        ids,
        because="outer dimensions differ",
    )
    need_rows("set_rows", table, rows, ids)
    need_writable("set_rows", table)
    ids = bounded("set_rows", ids, t[1], table, rows)
    return node(lib.ggml_set_rows, table.ndim, table, rows, ids)
