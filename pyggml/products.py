"""Matrix products: plain, by chosen experts with their biases, and the Hadamard rotation."""

from __future__ import annotations

from ._ffi import lib
from .operands import graph_of, ne_of, need, need_contiguous, need_rows, need_size, need_type, node
from .row_ids import bounded
from .shapes import reshape
from .tensor import MATRIX_TYPES, Tensor

# The types that ggml takes for the rows, by the type of the matrix; every matrix takes f32.
_ROW_TYPES = {"f16": ("f32", "f16"), "bf16": ("f32", "bf16"), "f32": ("f32", "bf16")}


def mul_mat(w: Tensor, x: Tensor, *, f32: bool = False) -> Tensor:
    """Multiply rows of `x` by a matrix stored as rows of outputs.

    Shapes: w [..., n_out, n_in], x [..., n, n_in] -> [..., n, n_out]; outer dimensions of `w`
    repeat over those of `x`. `f32` asks for float32 accumulation.
    """
    _need_matrix("mul_mat", w, x)
    need_type("mul_mat", x, _ROW_TYPES.get(w.dtype.name, ("f32",)))
    return _product(w, x, f32=f32)


def _need_matrix(op: str, w: Tensor, x: Tensor) -> None:
    need_type(op, w, MATRIX_TYPES)
    need(ne_of(w)[0] == ne_of(x)[0], op, w, x, because="the last dimensions must be equal")
    need_rows(op, w, x)


def _product(w: Tensor, x: Tensor, *, f32: bool = False) -> Tensor:
    a, b = ne_of(w), ne_of(x)
    need(
        b[2] % a[2] == 0 and b[3] % a[3] == 0,
        "mul_mat",
        w,
        x,
        because="outer dimensions of the first must divide those of the second",
    )
    need_size("mul_mat", (a[1], *b[1:]), w, x)
    nb = w.handle.nb
    need(bool(nb[0] <= nb[1]), "mul_mat", w, because="its rows overlap; use .cont()")
    product = node(lib.ggml_mul_mat, max(x.ndim, w.ndim), w, x)
    if f32:
        lib.ggml_prec_set_acc(product.handle, lib.GGML_PREC_F32)
    return product


def hadamard(x: Tensor, matrix: Tensor) -> Tensor:
    """Rotate each stretch of `x` by an orthonormal Hadamard matrix, which is its own inverse.

    Shapes: x [..., k * n] contiguous float32, matrix float32 [n, n], n a power of two -> the shape of x. Devices have a
    faster way than the matrix product and do not look at the matrix then; it serves the others.
    """
    n, rows, *outer = ne_of(matrix)
    need(
        n == rows and n & (n - 1) == 0 and outer == [1, 1],
        "hadamard",
        x,
        matrix,
        because="the matrix must be square, its side a power of two",
    )
    need(ne_of(x)[0] % n == 0, "hadamard", x, matrix, because="the matrix must divide the rows")
    need_type("hadamard", matrix, ("f32",))
    need_type("hadamard", x, ("f32",))
    need_contiguous("hadamard", x, matrix)
    graph_of(x, matrix)
    rotated = _product(matrix, reshape(x, (-1, n)))
    lib.ggml_mul_mat_set_hint(rotated.handle, lib.GGML_HINT_SRC0_IS_HADAMARD)
    return reshape(rotated, x.shape)


def mul_mat_id(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """Multiply each token by the matrices of its chosen experts.

    Shapes: experts [n_expert, n_out, n_in], x float32 [n_tokens, n_used or 1, n_in],
    ids int32 [n_tokens, n_used] -> [n_tokens, n_used, n_out]. Ids beyond the experts are errors in inputs; computed
    ones are limited to the experts there are. The experts of a token must differ: inputs are checked, and CUDA devices
    take computed ids from top_k only.
    """
    e, b, i = ne_of(experts), ne_of(x), ne_of(ids)
    need(
        e[3] == 1 and b[3] == 1 and i[2] == i[3] == 1,
        "mul_mat_id",
        experts,
        x,
        ids,
        because="three dimensions are the most",
    )
    _need_matrix("mul_mat_id", experts, x)
    need_type("mul_mat_id", x, ("f32",))
    need_type("mul_mat_id", ids, ("i32",))
    need_rows("mul_mat_id", ids)
    need(
        b[2] == i[1] and i[0] % b[1] == 0, "mul_mat_id", experts, x, ids, because="tokens or ids do not match"
    )
    need_size("mul_mat_id", (e[1], i[0], b[2]), experts, x, ids)
    ids = bounded("mul_mat_id", ids, e[2], experts, are_distinct=True)
    return node(lib.ggml_mul_mat_id, 3, experts, x, ids)


def add_id(x: Tensor, biases: Tensor, ids: Tensor) -> Tensor:
    """Add to each token's results the biases of its chosen experts.

    Shapes: x float32 [n_tokens, n_used, n], biases float32 [n_expert, n], ids int32 [n_tokens, n_used] -> the shape of
    x. Ids are limited as those of mul_mat_id.
    """
    a, b, i = ne_of(x), ne_of(biases), ne_of(ids)
    need_type("add_id", x, ("f32",))
    need_type("add_id", biases, ("f32",))
    need_type("add_id", ids, ("i32",))
    need_rows("add_id", x, biases, ids)
    need(
        a[0] == b[0] and a[1:3] == i[:2] and a[3] == b[2] == b[3] == i[2] == i[3] == 1,
        "add_id",
        x,
        biases,
        ids,
        because="tokens, ids or lengths do not match",
    )
    ids = bounded("add_id", ids, b[1], biases)
    return node(lib.ggml_add_id, 3, x, biases, ids)
