"""Attention with grouped heads over the KV cache, with or without a sliding window.

Optional parts (biases, norms of Q and K, sinks, a gate) are there when their weights are. Flash attention is used
where the device can run it for these shapes and the cache is not float32; otherwise the same is
computed in three steps.
"""

from __future__ import annotations

from collections.abc import Callable

import pyggml as gg

from ..forward import Forward

# Norms and turns the heads of Q and K of a layer, each [n_rows, n_head on this rank, head_dim].
Placing = Callable[[Forward, int, gg.Tensor, gg.Tensor], tuple[gg.Tensor, gg.Tensor]]


def norm_then_rope(f: Forward, i: int, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    """Norm Q and K where the file says so, then turn them by position."""
    return rotate_heads(f, i, *norm_heads(f, i, q, k))


def rope_then_norm(f: Forward, i: int, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    """Turn Q and K by position, then norm them."""
    return norm_heads(f, i, *rotate_heads(f, i, q, k))


def attention(f: Forward, i: int, x: gg.Tensor, *, place: Placing = norm_then_rope) -> gg.Tensor | None:
    """Attend from the normed input of layer i.

    Shapes: x [n_rows, n_embd] -> [n_rows, n_embd], reduced over ranks. In the last layer of a plan
    that wants no logits only K and V are written and None is returned.
    """
    hp, b = f.hp, f"blk.{i}."
    if f.maybe(b + "attn_q.weight") is None:
        if hp.has_wide_qk_norm:
            f.reduce(x[:, :2].cont() * 0.0)
        return None if only_writes(f, i) else f.nothing(x)
    q, k = (
        f.linear(x, b + name).reshape(f.shape.n_rows, -1, hp.heads(i).head_dim)
        for name in ("attn_q", "attn_k")
    )
    v = f.linear(x, b + "attn_v")
    seen = attend_cached(f, i, *place(f, i, q, k), v)
    if seen is None:
        return None
    if f.maybe(b + "attn_gate.weight") is not None:
        seen = seen * gg.sigmoid(f.linear(x, b + "attn_gate"))
    return f.reduce(f.linear(seen, b + "attn_output"))


def only_writes(f: Forward, i: int) -> bool:
    """Whether nothing but K and V of this layer is wanted."""
    return f.shape.n_out == 0 and i == f.hp.n_layer - 1


def norm_heads(f: Forward, i: int, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    """Norm each head, or all heads of a token together where hp says so; without weights, not at all."""
    b = f"blk.{i}."
    if f.hp.has_wide_qk_norm:
        return _norm_wide(f, b, q, k)
    if f.maybe(b + "attn_q_norm.weight") is not None:
        q = f.norm(q, b + "attn_q_norm")
    if f.maybe(b + "attn_k_norm.weight") is not None:
        k = f.norm(k, b + "attn_k_norm")
    return q, k


def _norm_wide(f: Forward, b: str, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    """RMS norm over the heads of all ranks."""
    hp, shapes = f.hp, (q.shape, k.shape)
    q, k = (x.reshape(f.shape.n_rows, -1) for x in (q, k))
    if not f.is_cut:
        q, k = f.norm(q, b + "attn_q_norm"), f.norm(k, b + "attn_k_norm")
    else:
        squares = f.reduce(gg.concat(gg.sum_rows(gg.sqr(q)), gg.sum_rows(gg.sqr(k)), -1))
        widths = (hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim)
        sizes = [
            gg.sqrt(squares[:, n : n + 1].cont() * (1.0 / width) + hp.norm_eps)
            for n, width in enumerate(widths)
        ]
        q = q / sizes[0] * f.weight(b + "attn_q_norm.weight")
        k = k / sizes[1] * f.weight(b + "attn_k_norm.weight")
    return q.reshape(*shapes[0]), k.reshape(*shapes[1])


def rotate_heads(f: Forward, i: int, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    """Turn Q and K by position in layers that do so, and let Q grow with it where hp has a temperature."""
    if f.hp.is_rotary(i):
        q, k = rotate(f, i, q), rotate(f, i, k)
    return (q if f.hp.temperature is None else q * f.temperature()), k


def rotate(f: Forward, i: int, heads: gg.Tensor) -> gg.Tensor:
    """Turn heads [n_rows, n_head, n] by position as layer i does."""
    rope = f.hp.rope_swa if f.hp.is_swa[i] else f.hp.rope
    return gg.rope(
        heads,
        f.positions,
        n_dims=rope.n_dims,
        neox=rope.neox,
        n_ctx_orig=rope.n_ctx_orig,
        freq_base=rope.freq_base,
        freq_scale=rope.freq_scale,
        ext_factor=rope.ext_factor,
        attn_factor=rope.attn_factor,
        beta_fast=rope.beta_fast,
        beta_slow=rope.beta_slow,
        freq_factors=_freq_factors(f) if rope.has_factors else None,
    )


def _freq_factors(f: Forward) -> gg.Tensor | None:
    """Divisors of the frequencies: the file's only ones, or those for short or long contexts."""
    is_long = f.cache.n_ctx > f.hp.rope.n_ctx_orig
    either = f.maybe(f"rope_factors_{'long' if is_long else 'short'}.weight")
    return either if either is not None else f.maybe("rope_freqs.weight")


def attend_cached(
    f: Forward, i: int, q: gg.Tensor, k: gg.Tensor | None, v: gg.Tensor | None
) -> gg.Tensor | None:
    """Write K and V of layer i into the cache and attend to what it holds; None where only the writing is wanted.

    V None is the first part of K. K None too: the layer attends to what hp.kv_layer says.
    Shapes: q and k [n_rows, heads of this rank, head_dim], v [n_rows, heads * head_dim_v] -> [n_rows, the same of q].
    """
    hp = f.hp
    if k is not None:
        _write(f, i, k, v)
    if only_writes(f, i):
        for table in f.tables[i] if i in f.tables else [t for tables in f.tables.values() for t in tables]:
            f.graph.do(table)
        return None
    heads, tables = hp.heads(i), f.tables[hp.kv_layer(i)]
    q = _turn(f, q, f.cache.turn_k)
    q = q.reshape(f.shape.n_seq, f.shape.n_tokens, -1, heads.head_dim).permute(0, 2, 1, 3)
    k = _window(f, tables[0], heads.head_dim, heads.head_dim)
    v = _window(f, tables[-1], heads.head_dim_v if hp.has_v_cache else heads.head_dim, heads.head_dim_v)
    sinks = f.maybe(f"blk.{i}.attn_sinks.weight")
    seen = attend(f, q, k, v, f.mask(hp.is_swa[i]), hp.attn_scale, softcap=hp.attn_softcap, sinks=sinks)
    return _turn(f, seen, f.cache.turn_v)


def _write(f: Forward, i: int, k: gg.Tensor, v: gg.Tensor | None) -> None:
    """Add rows to the tables of layer i, which `f.tables` then has as they are afterwards."""
    parts = [(f.cache.k[i], _turn(f, k, f.cache.turn_k).reshape(f.shape.n_rows, -1))]
    if v is not None:
        parts.append((f.cache.v[i], _turn(f, v, f.cache.turn_v)))
    f.tables[i] = [gg.set_rows(f.graph.use(table), rows, f.kv_rows) for table, rows in parts]


def _turn(f: Forward, x: gg.Tensor, matrix: gg.Tensor | None) -> gg.Tensor:
    """Turn by the cache's Hadamard matrix, where it has one; twice is back."""
    return x if matrix is None else gg.hadamard(x, f.graph.use(matrix))


def _window(f: Forward, table: gg.Tensor, head_dim: int, n: int) -> gg.Tensor:
    """The first n elements of heads in the visible rows of the slots of this batch, [n_seq, n_head_kv, n_kv, n]."""
    s = f.shape
    row = table.strides[0]
    head = head_dim // table.dtype.block_size * table.dtype.type_size
    slot = f.cache.n_rows * row
    shape = (s.n_seq, s.n_kv, row // head, n)
    window = gg.view(table, shape, (slot, row, head), s.slot0 * slot)
    return f.graph.let_move(window, 1, step=slot).permute(0, 2, 1, 3)


def attend(
    f: Forward,
    q: gg.Tensor,
    k: gg.Tensor,
    v: gg.Tensor,
    mask: gg.Tensor,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: gg.Tensor | None = None,
) -> gg.Tensor:
    """softmax(q k^T * scale + mask) v; `softcap` bends the scaled scores by a tanh to at most that.

    Shapes: q [n_seq, n_head, n_tokens, d], k and v [n_seq, n_head_kv, n_kv, d], sinks [n_head] ->
    [n_rows, n_head * d].
    """
    if k.dtype.name != "f32":
        fused = gg.flash_attn(q, k, v, mask, scale=scale, softcap=softcap, sinks=sinks)
        if f.graph.backend.supports(fused):
            return fused.reshape(f.shape.n_rows, -1)
    # The product of K and Q passes float16's range in some models: accumulate in float32.
    scores = gg.mul_mat(k, q, f32=True)
    if softcap:
        scores, scale = gg.tanh(scores * (scale / softcap)) * softcap, 1.0
    weights = gg.soft_max(scores, mask, scale=scale, sinks=sinks)
    if v.dtype.is_quantized:
        v = v.cast("f32")
    seen = gg.mul_mat(v.T.cont(), weights)
    return seen.permute(0, 2, 1, 3).cont().reshape(f.shape.n_rows, -1)
