"""The operations of a graph, checked in Python before C sees them.

ggml's own builders end the process on a bad shape; here every rule is looked at first and a
ShapeError names the shapes. Each function adds a node to the graph of its operands and returns it.
Shapes are in numpy order, outermost first; `...` stands for outer dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._ffi import ffi, lib
from .dtypes import DType, dtype
from .errors import ShapeError
from .tensor import Tensor, ggml_ne


def _node(handle: Any, ndim: int, *operands: Tensor | None) -> Tensor:
    graph = _graph(*operands)
    return Tensor(handle, ndim, graph, graph)


def _graph(*operands: Tensor | None) -> Any:
    for operand in operands:
        if operand is not None and operand.graph is not None:
            return operand.graph
    raise ShapeError("none of the operands belongs to a graph; begin with graph.input(...) or graph.use(tensor)")


def _ctx(*operands: Tensor | None) -> Any:
    return _graph(*operands).context


def _need(condition: bool, op: str, *operands: Tensor, because: str) -> None:
    if not condition:
        shapes = ", ".join(f"{t.shape} {t.dtype.name}" for t in operands)
        raise ShapeError(f"{op} cannot take {shapes}: {because}")


def _ne(t: Tensor) -> tuple[int, int, int, int]:
    ne = t.handle.ne
    return int(ne[0]), int(ne[1]), int(ne[2]), int(ne[3])


def _repeats(small: Tensor, large: Tensor) -> bool:
    return all(b and a % b == 0 for a, b in zip(_ne(large), _ne(small)))


def _binary(name: str, function: Any, a: Tensor, b: Tensor, *, commutes: bool) -> Tensor:
    if commutes and not _repeats(b, a) and _repeats(a, b):
        a, b = b, a
    _need(_repeats(b, a), name, a, b, because="the second must repeat to the shape of the first")
    return _node(function(_ctx(a, b), a.handle, b.handle), max(a.ndim, b.ndim), a, b)


def add(a: Tensor, b: Tensor | float) -> Tensor:
    """Add; the smaller operand repeats to the larger one's shape."""
    if isinstance(b, (int, float)):
        return _binary("add", lib.ggml_add, a, _graph(a).constant(float(b)), commutes=False)
    return _binary("add", lib.ggml_add, a, b, commutes=True)


def sub(a: Tensor, b: Tensor) -> Tensor:
    """Subtract; `b` repeats to the shape of `a`."""
    return _binary("sub", lib.ggml_sub, a, b, commutes=False)


def mul(a: Tensor, b: Tensor) -> Tensor:
    """Multiply element by element; the smaller operand repeats."""
    return _binary("mul", lib.ggml_mul, a, b, commutes=True)


def div(a: Tensor, b: Tensor) -> Tensor:
    """Divide element by element; `b` repeats to the shape of `a`."""
    return _binary("div", lib.ggml_div, a, b, commutes=False)


def _unary(function: Any, x: Tensor, *arguments: float) -> Tensor:
    return _node(function(_ctx(x), x.handle, *arguments), x.ndim, x)


def neg(x: Tensor) -> Tensor:
    """-x."""
    return _unary(lib.ggml_neg, x)


def sqr(x: Tensor) -> Tensor:
    """The square of each element."""
    return _unary(lib.ggml_sqr, x)


def sqrt(x: Tensor) -> Tensor:
    """The square root of each element."""
    return _unary(lib.ggml_sqrt, x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of each element."""
    return _unary(lib.ggml_log, x)


def exp(x: Tensor) -> Tensor:
    """The exponential of each element."""
    return _unary(lib.ggml_exp, x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of each element."""
    return _unary(lib.ggml_tanh, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return _unary(lib.ggml_relu, x)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return _unary(lib.ggml_gelu, x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return _unary(lib.ggml_silu, x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _unary(lib.ggml_sigmoid, x)


def scale(x: Tensor, factor: float) -> Tensor:
    """Multiply by a number."""
    _need(x.is_contiguous or x.handle.nb[0] == 4, "scale", x, because="rows must be contiguous")
    return _unary(lib.ggml_scale, x, factor)


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Limit each element; unlike ggml's builder this does not write into `x`."""
    copy = cont(x)
    return _unary(lib.ggml_clamp, copy, low, high)


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm of each row, without weight and bias."""
    return _unary(lib.ggml_norm, x, eps)


def rms_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Divide each row by its root mean square."""
    return _unary(lib.ggml_rms_norm, x, eps)


def sum_rows(x: Tensor) -> Tensor:
    """Sums of the last dimension, which becomes 1."""
    return _unary(lib.ggml_sum_rows, x)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    _need(gate.shape == up.shape, "swiglu", gate, up, because="both must have one shape")
    return _node(lib.ggml_swiglu_split(_ctx(gate, up), gate.handle, up.handle), gate.ndim, gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up."""
    _need(gate.shape == up.shape, "geglu", gate, up, because="both must have one shape")
    return _node(lib.ggml_geglu_split(_ctx(gate, up), gate.handle, up.handle), gate.ndim, gate, up)


def mul_mat(w: Tensor, x: Tensor, *, f32: bool = False) -> Tensor:
    """Multiply rows of `x` by a matrix stored as rows of outputs.

    Shapes: w [..., n_out, n_in], x [..., n, n_in] -> [..., n, n_out]; outer dimensions of `w`
    repeat over those of `x`. `f32` asks for float32 accumulation.
    """
    a, b = _ne(w), _ne(x)
    _need(a[0] == b[0], "mul_mat", w, x, because="the last dimensions must be equal")
    _need(bool(a[2] and a[3]) and b[2] % a[2] == 0 and b[3] % a[3] == 0, "mul_mat", w, x,
          because="outer dimensions of the first must divide those of the second")  # fmt: skip
    _need(int(w.handle.nb[0]) <= int(w.handle.nb[1]), "mul_mat", w, x, because="the first is transposed; use .cont()")
    _need(x.dtype.name in ("f32", "f16", "bf16"), "mul_mat", w, x, because="the second must be a float type")
    handle = lib.ggml_mul_mat(_ctx(w, x), w.handle, x.handle)
    if f32:
        lib.ggml_prec_set_acc(handle, lib.GGML_PREC_F32)
    return _node(handle, max(x.ndim, w.ndim), w, x)


def hadamard(x: Tensor, matrix: Tensor) -> Tensor:
    """Rotate each stretch of `x` by an orthonormal Hadamard matrix, which is its own inverse.

    Shapes: x [..., k * n] contiguous, matrix float32 [n, n] -> the shape of x. Devices have a faster
    way than the matrix product; the matrix serves the others.
    """
    n = _ne(matrix)[0]
    _need(x.is_contiguous and _ne(x)[0] % n == 0, "hadamard", x, matrix, because="rows must be contiguous multiples of the matrix")
    rotated = mul_mat(matrix, reshape(x, (-1, n)))
    lib.ggml_mul_mat_set_hint(rotated.handle, lib.GGML_HINT_SRC0_IS_HADAMARD)
    return reshape(rotated, x.shape)


def mul_mat_id(experts: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """Multiply each token by the matrices of its chosen experts.

    Shapes: experts [n_expert, n_out, n_in], x [n_tokens, n_used or 1, n_in],
    ids int32 [n_tokens, n_used] -> [n_tokens, n_used, n_out].
    """
    e, b, i = _ne(experts), _ne(x), _ne(ids)
    _need(e[3] == 1 and b[3] == 1 and i[2] == i[3] == 1, "mul_mat_id", experts, x, ids, because="three dimensions are the most")
    _need(ids.dtype.name == "i32", "mul_mat_id", experts, x, ids, because="the ids must be int32")
    _need(e[0] == b[0], "mul_mat_id", experts, x, ids, because="n_in differs")
    _need(b[2] == i[1] and b[1] and i[0] % b[1] == 0, "mul_mat_id", experts, x, ids, because="tokens or ids do not match")
    return _node(lib.ggml_mul_mat_id(_ctx(experts, x, ids), experts.handle, x.handle, ids.handle), 3, experts, x, ids)


def get_rows(table: Tensor, ids: Tensor) -> Tensor:
    """Pick rows by number, as float32.

    Shapes: table [..., n_rows, n], ids int32 [..., k] -> [..., k, n].
    """
    a, b = _ne(table), _ne(ids)
    _need(ids.dtype.name == "i32", "get_rows", table, ids, because="the ids must be int32")
    _need(a[2] == b[1] and a[3] == b[2] and b[3] == 1, "get_rows", table, ids, because="outer dimensions differ")
    return _node(lib.ggml_get_rows(_ctx(table, ids), table.handle, ids.handle), max(2, table.ndim, ids.ndim + 1), table, ids)


def set_rows(table: Tensor, rows: Tensor, ids: Tensor) -> Tensor:
    """Write rows by number into `table` and return `table` after the writing.

    Shapes: table [..., n_rows, n] of any type, rows float32 [..., k, n], ids int32 or int64 [..., k].
    """
    t, r, i = _ne(table), _ne(rows), _ne(ids)
    _need(ids.dtype.name in ("i32", "i64"), "set_rows", table, rows, ids, because="the ids must be int32 or int64")
    _need(rows.dtype.name == "f32", "set_rows", table, rows, ids, because="the rows must be float32")
    _need(t[0] == r[0] and t[2] == r[2] and t[3] == r[3] and r[1] == i[0], "set_rows", table, rows, ids, because="lengths differ")
    _need(r[2] % i[1] == 0 and r[3] % i[2] == 0 and i[3] == 1, "set_rows", table, rows, ids, because="outer dimensions differ")
    return _node(lib.ggml_set_rows(_ctx(rows, ids, table), table.handle, rows.handle, ids.handle), table.ndim, rows, ids, table)


def soft_max(x: Tensor, mask: Tensor | None = None, *, scale: float = 1.0, max_bias: float = 0.0) -> Tensor:
    """softmax(x * scale + mask) over the last dimension; mask float32 or float16, repeated outside."""
    _need(x.is_contiguous, "soft_max", x, because="it must be contiguous")
    if mask is not None:
        a, m = _ne(x), _ne(mask)
        _need(mask.dtype.name in ("f32", "f16") and mask.is_contiguous, "soft_max", x, mask, because="the mask must be contiguous floats")
        _need(m[0] == a[0] and m[1] >= a[1] and a[2] % m[2] == 0 and a[3] % m[3] == 0, "soft_max", x, mask, because="the mask does not cover it")
    handle = lib.ggml_soft_max_ext(_ctx(x), x.handle, mask.handle if mask else ffi.NULL, scale, max_bias)
    return _node(handle, x.ndim, x)


def rope(
    x: Tensor,
    positions: Tensor,
    *,
    n_dims: int,
    neox: bool = False,
    n_ctx_orig: int = 0,
    freq_base: float = 10000.0,
    freq_scale: float = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    freq_factors: Tensor | None = None,
) -> Tensor:
    """Rotate pairs of each head by its position.

    Shapes: x [n_tokens, n_head, head_dim], positions int32 [n_tokens], freq_factors [n_dims / 2].
    `neox` pairs i with i + n_dims/2, else 2i with 2i+1. With ext_factor != 0 ggml multiplies the
    magnitude by 1 + 0.1 ln(1 / freq_scale) itself (YaRN).
    """
    a = _ne(x)
    _need(positions.dtype.name == "i32" and positions.ndim == 1 and positions.shape[0] == a[2], "rope", x, positions, because="one int32 position a token is needed")
    _need(0 < n_dims <= a[0] and n_dims % 2 == 0, "rope", x, because=f"n_dims = {n_dims} must be even and at most head_dim")
    if freq_factors is not None:
        _need(freq_factors.dtype.name == "f32" and _ne(freq_factors)[0] >= n_dims // 2, "rope", x, freq_factors, because="a float32 factor for each pair is needed")
    handle = lib.ggml_rope_ext(
        _ctx(x), x.handle, positions.handle, freq_factors.handle if freq_factors else ffi.NULL, n_dims,
        lib.GGML_ROPE_TYPE_NEOX if neox else 0, n_ctx_orig, freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow,
    )  # fmt: skip
    return _node(handle, x.ndim, x)


def flash_attn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scale: float, max_bias: float = 0.0, softcap: float = 0.0) -> Tensor:
    """Attention in one operation, accumulated in float32.

    Shapes: q [n_seq, n_head, n, d], k [n_seq, n_head_kv, n_kv, d], v [n_seq, n_head_kv, n_kv, dv],
    mask float16 [n_seq or 1, 1, n, n_kv] -> [n_seq, n, n_head, dv]. Not every device takes every
    shape: ask `backend.supports(node)`.
    """
    a, b, c = _ne(q), _ne(k), _ne(v)
    _need(a[0] == b[0] and b[1] == c[1] and b[2] == c[2] and bool(b[2]) and a[2] % b[2] == 0, "flash_attn", q, k, v, because="heads or lengths do not match")
    _need(a[3] == b[3] == c[3], "flash_attn", q, k, v, because="the numbers of sequences differ")
    if mask is not None:
        m = _ne(mask)
        _need(mask.dtype.name == "f16" and mask.is_contiguous, "flash_attn", q, mask, because="the mask must be contiguous float16")
        _need(m[0] == b[1] and m[1] >= a[1] and a[2] % m[2] == 0 and a[3] % m[3] == 0, "flash_attn", q, k, mask, because="the mask does not cover it")
    handle = lib.ggml_flash_attn_ext(_ctx(q), q.handle, k.handle, v.handle, mask.handle if mask else ffi.NULL, scale, max_bias, softcap)
    lib.ggml_prec_set_acc(handle, lib.GGML_PREC_F32)
    return _node(handle, 4, q)


def argmax(x: Tensor) -> Tensor:
    """The place of the largest element of each row of a matrix, int32 [n_rows]."""
    _need(x.ndim <= 2, "argmax", x, because="it takes a matrix")
    return _node(lib.ggml_argmax(_ctx(x), x.handle), 1, x)


def top_k(x: Tensor, k: int) -> Tensor:
    """The places of the k largest elements of each row, largest first, int32 [..., k]."""
    _need(0 < k <= _ne(x)[0], "top_k", x, because=f"k = {k} must be 1 to the row's length")
    return _node(lib.ggml_argsort_top_k(_ctx(x), x.handle, k), x.ndim, x)


def concat(a: Tensor, b: Tensor, axis: int) -> Tensor:
    """Put `b` behind `a` along an axis."""
    axis = axis + a.ndim if axis < 0 else axis
    same = a.ndim == b.ndim and all(m == n for i, (m, n) in enumerate(zip(a.shape, b.shape)) if i != axis)
    _need(same and 0 <= axis < a.ndim and a.dtype == b.dtype, "concat", a, b, because=f"only axis {axis} may differ")
    return _node(lib.ggml_concat(_ctx(a, b), a.handle, b.handle, a.ndim - 1 - axis), a.ndim, a, b)


def repeat(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Copy `x` as often as fills the shape."""
    ne = ggml_ne(shape)
    _need(all(b and a % b == 0 for a, b in zip(ne, _ne(x))), "repeat", x, because=f"it does not divide {tuple(shape)}")
    return _node(lib.ggml_repeat_4d(_ctx(x), x.handle, *ne), len(shape), x)


def cont(x: Tensor) -> Tensor:
    """A contiguous copy."""
    return _unary(lib.ggml_cont, x)


def cast(x: Tensor, kind: str | DType) -> Tensor:
    """A contiguous copy in another type."""
    kind = dtype(kind)
    _need(_ne(x)[0] % kind.block_size == 0, "cast", x, because=f"rows do not fit {kind.name} blocks of {kind.block_size}")
    return _node(lib.ggml_cast(_ctx(x), x.handle, kind.id), x.ndim, x)


def copy(x: Tensor, to: Tensor) -> Tensor:
    """Copy `x` into the memory of `to`, converting, and return `to` after the writing."""
    _need(lib.ggml_nelements(x.handle) == lib.ggml_nelements(to.handle), "copy", x, to, because="the numbers of elements differ")
    return _node(lib.ggml_cpy(_ctx(x, to), x.handle, to.handle), to.ndim, x, to)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """The same elements in another shape; one length may be -1."""
    shape = [int(n) for n in shape]
    n = int(lib.ggml_nelements(x.handle))
    if shape.count(-1) == 1:
        known = 1
        for length in shape:
            known *= length if length != -1 else 1
        shape[shape.index(-1)] = n // known if known else 0
    ne = ggml_ne(shape)
    _need(x.is_contiguous, "reshape", x, because="it must be contiguous; use .cont()")
    _need(ne[0] * ne[1] * ne[2] * ne[3] == n, "reshape", x, because=f"{tuple(shape)} has another number of elements")
    return _node(lib.ggml_reshape_4d(_ctx(x), x.handle, *ne), len(shape), x)


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The dimensions in another order, as numpy's transpose(axes), without a copy."""
    n = len(axes)
    _need(sorted(axes) == list(range(n)) and n >= x.ndim, "permute", x, because=f"{tuple(axes)} is no order of its dimensions")
    targets = [0, 1, 2, 3]
    for new, old in enumerate(axes):
        targets[n - 1 - old] = n - 1 - new
    return _node(lib.ggml_permute(_ctx(x), x.handle, *targets), n, x)


def view(x: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Tensor:
    """A window on the memory of `x`: strides of all but the last dimension and offset in bytes."""
    ne = ggml_ne(shape)
    nb = [int(s) for s in reversed(strides)]
    _need(len(nb) == len(shape) - 1, "view", x, because="one stride for each dimension but the last is needed")
    _need(ne[0] % x.dtype.block_size == 0, "view", x, because="rows must be whole blocks")
    row = ne[0] // x.dtype.block_size * x.dtype.type_size
    end = offset + row + sum((length - 1) * stride for length, stride in zip(ne[1:], nb))
    _need(0 <= offset and (end <= x.n_bytes or 0 in ne), "view", x, because=f"the window ends at byte {end} of {x.n_bytes}")
    while len(nb) < 3:
        nb.append(nb[-1] * ne[len(nb)] if nb else row)
    return _node(lib.ggml_view_4d(_ctx(x), x.handle, *ne, *nb, offset), len(shape), x)


def slice_view(x: Tensor, index: Any) -> Tensor:
    """Basic slicing, as numpy's: integers drop a dimension, slices have step 1."""
    index = index if isinstance(index, tuple) else (index,)
    _need(len(index) <= x.ndim, "slicing", x, because=f"{len(index)} indices are too many")
    shape, strides, offset = [], [], 0
    block, size = x.dtype.block_size, x.dtype.type_size
    for axis, (length, stride) in enumerate(zip(x.shape, x.strides)):
        part = index[axis] if axis < len(index) else slice(None)
        if isinstance(part, slice):
            start, stop, step = part.indices(length)
            _need(step == 1 and stop > start, "slicing", x, because=f"axis {axis} needs a step of 1 and a non-empty range")
        else:
            start = part + length if part < 0 else part
            _need(0 <= start < length, "slicing", x, because=f"index {part} is outside of axis {axis}")
            stop = start + 1
        last = axis == x.ndim - 1
        _need(not last or start % block == 0, "slicing", x, because=f"a row can be cut only every {block} elements")
        offset += start // block * size if last else start * stride
        if isinstance(part, slice) or last:
            shape.append(stop - start)
            strides.append(stride)
    _need(int(x.handle.nb[0]) == size, "slicing", x, because="its rows are not contiguous; use .cont()")
    return view(x, shape, strides[:-1], offset)
