"""What attention needs beside products: softmax under a mask, rotary positions, and attention in one operation."""

from __future__ import annotations

from ._ffi import lib
from .operands import graph_of, ne_of, need, need_contiguous, need_rows, need_size, need_type, node
from .shapes import concat
from .tensor import MATRIX_TYPES, Tensor


def soft_max(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    scale: float = 1.0,
    max_bias: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """softmax(x * scale + mask) over the last dimension of a float32 tensor.

    Shapes: x [..., n, k], mask float32 or float16 [..., n or more, k], outer dimensions repeated. `max_bias` > 0 scales
    the mask by head (ALiBi). `sinks` float32 [n_head] has one more score for each head of x [..., n_head, n, k], which
    takes its part of the sum and gives nothing.
    """
    need_type("soft_max", x, ("f32",))
    need_contiguous("soft_max", x)
    if mask is None:
        need(not max_bias > 0, "soft_max", x, because="max_bias needs a mask")
    else:
        a, m = ne_of(x), ne_of(mask)
        need_type("soft_max", mask, ("f32", "f16"))
        need_contiguous("soft_max", mask)
        need(
            m[0] == a[0] and m[1] >= a[1] and a[2] % m[2] == 0 and a[3] % m[3] == 0,
            "soft_max",
            x,
            mask,
            because="the mask does not cover it",
        )
    weights = node(lib.ggml_soft_max_ext, x.ndim, x, mask, scale, max_bias)
    if sinks is not None:
        _need_sinks("soft_max", x, sinks)
        lib.ggml_soft_max_add_sinks(weights.handle, sinks.handle)
    return weights


def _need_sinks(op: str, x: Tensor, sinks: Tensor) -> None:
    graph_of(x, sinks)
    need_type(op, sinks, ("f32",))
    need_contiguous(op, sinks)
    need(
        sinks.ndim == 1 and ne_of(sinks)[0] == ne_of(x)[2],
        op,
        x,
        sinks,
        because="one sink for each head is needed",
    )


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

    Shapes: x float32 or float16 [n_tokens, n_head, head_dim], positions int32 [n_tokens], freq_factors [n_dims / 2].
    `neox` pairs i with i + n_dims/2, else 2i with 2i+1. With ext_factor != 0 ggml multiplies the
    magnitude by 1 + 0.1 ln(1 / freq_scale) itself (YaRN).
    """
    head_dim, _, n_tokens, _ = ne_of(x)
    need_type("rope", x, ("f32", "f16"))
    need_rows("rope", x)
    need_type("rope", positions, ("i32",))
    need_contiguous("rope", positions)
    need(
        positions.ndim == 1 and positions.shape[0] == n_tokens,
        "rope",
        x,
        positions,
        because="one int32 position a token is needed",
    )
    need(
        head_dim % 2 == 0 and 0 < n_dims <= head_dim and n_dims % 2 == 0,
        "rope",
        x,
        because=f"head_dim and n_dims = {n_dims} must be even, and n_dims at most head_dim",
    )
    if freq_factors is not None:
        freq_factors = _full_factors(freq_factors, n_dims // 2, head_dim // 2)
    mode = lib.GGML_ROPE_TYPE_NEOX if neox else 0
    return node(
        lib.ggml_rope_ext,
        x.ndim,
        x,
        positions,
        freq_factors,
        n_dims,
        mode,
        n_ctx_orig,
        freq_base,
        freq_scale,
        ext_factor,
        attn_factor,
        beta_fast,
        beta_slow,
    )


def _full_factors(factors: Tensor, n: int, n_read: int) -> Tensor:
    """Factors for every pair of the head: ggml's CPU code reads past those that it rotates by."""
    need_type("rope", factors, ("f32",))
    need_contiguous("rope", factors)
    need(ne_of(factors)[0] >= n, "rope", factors, because=f"{n} factors are needed, one for each pair")
    while ne_of(factors)[0] < n_read:
        factors = concat(factors, factors, -1)
    return factors


def flash_attn(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
    max_bias: float = 0.0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention in one operation, accumulated in float32 where the device can.

    Shapes: q float32 [n_seq, n_head, n, d], k [n_seq, n_head_kv, n_kv, d], v [n_seq, n_head_kv, n_kv, dv],
    mask float16 [n_seq or 1, 1, n, n_kv], sinks float32 [n_head] (see soft_max) -> [n_seq, n, n_head, dv]. Not every
    device takes every shape: ask `backend.supports(node)`.
    """
    a, b, c = ne_of(q), ne_of(k), ne_of(v)
    need_type("flash_attn", q, ("f32",))
    need_type("flash_attn", k, MATRIX_TYPES)
    need_type("flash_attn", v, MATRIX_TYPES)
    need_rows("flash_attn", q, k, v)
    need(
        a[0] == b[0] and b[1] == c[1] and b[2] == c[2] and a[2] % b[2] == 0,
        "flash_attn",
        q,
        k,
        v,
        because="heads or lengths do not match",
    )
    need(a[3] == b[3] == c[3], "flash_attn", q, k, v, because="the numbers of sequences differ")
    need_size("flash_attn", (c[0], a[2], a[1], a[3]), q, k, v)
    if mask is None:
        need(not max_bias > 0, "flash_attn", q, because="max_bias needs a mask")
    else:
        m = ne_of(mask)
        need_type("flash_attn", mask, ("f16",))
        need_contiguous("flash_attn", mask)
        need(
            m[0] == b[1] and m[1] >= a[1] and a[2] % m[2] == 0 and a[3] % m[3] == 0,
            "flash_attn",
            q,
            k,
            mask,
            because="the mask does not cover it",
        )
    attended = node(lib.ggml_flash_attn_ext, 4, q, k, v, mask, scale, max_bias, softcap)
    lib.ggml_prec_set_acc(attended.handle, lib.GGML_PREC_F32)
    if sinks is not None:
        _need_sinks("flash_attn", q, sinks)
        lib.ggml_flash_attn_ext_add_sinks(attended.handle, sinks.handle)
    return attended
