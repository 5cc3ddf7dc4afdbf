"""Arithmetic, activations, norms and reductions of a graph.

Each function adds a node to the graph of its operands and returns it; ShapeError names operands that do not fit.
Shapes are in numpy order, outermost first; `...` stands for outer dimensions.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

from ._ffi import lib
from .errors import ShapeError
from .operands import (
    FLOATS,
    graph_of,
    has_even_rows,
    need,
    need_contiguous,
    need_even_rows,
    need_rows,
    need_type,
    node,
    repeats,
)
from .shapes import cast, cont, repeat
from .tensor import Tensor


def _binary(name: str, function: Any, a: Tensor, b: Tensor, *, commutes: bool) -> Tensor:
    if commutes and not repeats(b, a) and repeats(a, b):
        a, b = b, a
    need(repeats(b, a), name, a, b, because="the second must repeat to the shape of the first")
    need_type(name, a, FLOATS)
    need(
        b.dtype.name in (a.dtype.name, "f32"),
        name,
        a,
        b,
        because="the smaller one must have the other's type or be f32; use .cast(...)",
    )
    need_rows(name, a)
    return node(function, max(a.ndim, b.ndim), a, b)


def _scaled(x: Tensor, factor: float, offset: float) -> Tensor:
    """x * factor + offset, in one node where ggml has it for the operand."""
    need_type("arithmetic with a number", x, FLOATS)
    if x.dtype.name != "f16" and x.is_contiguous and has_even_rows(x):
        return node(lib.ggml_scale_bias, x.ndim, x, factor, offset)
    constant = graph_of(x).constant
    if factor != 1.0:
        x = mul(x, constant(factor))
    return add(x, constant(offset)) if offset else x


def add(a: Tensor, b: Tensor | float) -> Tensor:
    """Add; the smaller operand repeats to the larger one's shape, and the larger one's type stays."""
    if not isinstance(b, Tensor):
        return _scaled(a, 1.0, _number("add", b))
    return _binary("add", lib.ggml_add, a, b, commutes=True)


def sub(a: Tensor, b: Tensor | float) -> Tensor:
    """Subtract; `b` repeats to the shape of `a`."""
    if not isinstance(b, Tensor):
        return _scaled(a, 1.0, -_number("sub", b))
    return _binary("sub", lib.ggml_sub, a, b, commutes=False)


def mul(a: Tensor, b: Tensor | float) -> Tensor:
    """Multiply element by element; the smaller operand repeats."""
    if not isinstance(b, Tensor):
        return scale(a, _number("mul", b))
    return _binary("mul", lib.ggml_mul, a, b, commutes=True)


def div(a: Tensor, b: Tensor | float) -> Tensor:
    """Divide element by element; `b` repeats to the shape of `a`."""
    if not isinstance(b, Tensor):
        divisor = _number("div", b)
        return scale(a, 1.0 / divisor if divisor else math.copysign(math.inf, divisor))
    return _binary("div", lib.ggml_div, a, b, commutes=False)


def _number(op: str, value: Any) -> float:
    if not isinstance(value, numbers.Real):
        raise ShapeError(
            f"{op} takes tensors and numbers, not {type(value).__name__}; give arrays to graph.weight(...)"
        )
    return float(value)


def scale(x: Tensor, factor: float) -> Tensor:
    """Multiply by a number."""
    return _scaled(x, factor, 0.0)


def _unary(name: str, function: Any, x: Tensor) -> Tensor:
    need_type(name, x, FLOATS)
    need_rows(name, x)
    return node(function, x.ndim, x)


def _flat(name: str, function: Any, x: Tensor) -> Tensor:
    """A unary operation whose CUDA kernel takes all elements as one row."""
    need_contiguous(name, x)
    return _unary(name, function, x)


def neg(x: Tensor) -> Tensor:
    """-x."""
    return _unary("neg", lib.ggml_neg, x)


def sqr(x: Tensor) -> Tensor:
    """The square of each element."""
    return _flat("sqr", lib.ggml_sqr, x)


def sqrt(x: Tensor) -> Tensor:
    """The square root of each element."""
    return _flat("sqrt", lib.ggml_sqrt, x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm of each element."""
    return _flat("log", lib.ggml_log, x)


def exp(x: Tensor) -> Tensor:
    """The exponential of each element."""
    return _unary("exp", lib.ggml_exp, x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent of each element."""
    return _unary("tanh", lib.ggml_tanh, x)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return _unary("relu", lib.ggml_relu, x)


def gelu(x: Tensor) -> Tensor:
    """GELU in its tanh form."""
    return _unary("gelu", lib.ggml_gelu, x)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return _unary("silu", lib.ggml_silu, x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return _unary("sigmoid", lib.ggml_sigmoid, x)


def clamp(x: Tensor, low: float, high: float) -> Tensor:
    """Limit each element of a float32 or float16 tensor."""
    need_type("clamp", x, ("f32", "f16"))
    need(low <= high, "clamp", x, because=f"the lower limit {low} is above the upper one, {high}")
    return node(lib.ggml_clamp, x.ndim, x if x.is_contiguous and has_even_rows(x) else cont(x), low, high)


def _glu(name: str, function: Any, gate: Tensor, up: Tensor, *numbers: float) -> Tensor:
    need(
        gate.shape == up.shape and gate.dtype == up.dtype,
        name,
        gate,
        up,
        because="both must have one shape and type",
    )
    need_type(name, gate, FLOATS)
    need_even_rows(name, gate, up)
    return node(function, gate.ndim, gate, up, *numbers)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up."""
    return _glu("swiglu", lib.ggml_swiglu_split, gate, up)


def geglu(gate: Tensor, up: Tensor) -> Tensor:
    """gelu(gate) * up."""
    return _glu("geglu", lib.ggml_geglu_split, gate, up)


def swiglu_oai(gate: Tensor, up: Tensor, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """gate * sigmoid(alpha * gate) * (up + 1) in float32, with gate at most `limit` and up within it (gpt-oss)."""
    need_type("swiglu_oai", gate, ("f32",))
    return _glu("swiglu_oai", lib.ggml_swiglu_oai, gate, up, alpha, limit)


def _normed(name: str, function: Any, x: Tensor, eps: float) -> Tensor:
    need_type(name, x, ("f32",))
    need_rows(name, x)
    need(0 <= eps < math.inf, name, x, because=f"eps = {eps} must be 0 or more")
    return node(function, x.ndim, x, eps)


def norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Layer norm of each row of a float32 tensor, without weight and bias."""
    return _normed("norm", lib.ggml_norm, x, eps)


def rms_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Divide each row of a float32 tensor by its root mean square."""
    return _normed("rms_norm", lib.ggml_rms_norm, x, eps)


def sum_rows(x: Tensor) -> Tensor:
    """Sums of the last dimension of a float32 tensor, which becomes 1."""
    need_type("sum_rows", x, ("f32",))
    need_rows("sum_rows", x)
    return node(lib.ggml_sum_rows, x.ndim, x)


def argmax(x: Tensor) -> Tensor:
    """The place of the largest element of each row of a float32 matrix, int32 [n_rows]."""
    need(x.ndim <= 2, "argmax", x, because="it takes a matrix")
    need_type("argmax", x, ("f32",))
    need_contiguous("argmax", x)
    return node(lib.ggml_argmax, 1, x)


def top_k(x: Tensor, k: int) -> Tensor:
    """The places of the k largest elements of each float32 row, largest first, int32 [..., k].

    Equal elements come in any order.
    """
    need(0 < k <= x.shape[-1], "top_k", x, because=f"k = {k} must be 1 to the row's length")
    need_type("top_k", x, ("f32",))
    need_contiguous("top_k", x)
    need_even_rows("top_k", x)
    return node(lib.ggml_argsort_top_k, x.ndim, x, k)


def quotient(number: float, x: Tensor) -> Tensor:
    """A number divided by each element."""
    need_type("arithmetic with a number", x, FLOATS)
    numbers_of_x = repeat(graph_of(x).constant(_number("div", number)), x.shape)
    return div(numbers_of_x if x.dtype.name == "f32" else cast(numbers_of_x, x.dtype), x)
