"""Attention with grouped heads over the KV cache, with or without a sliding window.

Optional parts (biases, norms of Q and K) are there when their weights are. Flash attention is used
where the device can run it for these shapes and the cache is not float32; otherwise the same is
computed in three steps.
"""

from __future__ import annotations

import pyggml as gg

from ..forward import Forward


def attention(f: Forward, i: int, x: gg.Tensor) -> gg.Tensor | None:
    """Attend from the normed input of layer i.

    Shapes: x [n_rows, n_embd] -> [n_rows, n_embd], reduced over ranks. In the last layer of a plan
    that wants no logits only K and V are written and None is returned.
    """
    hp, b = f.hp, f"blk.{i}."
    swa = hp.is_swa[i]
    only_writes = f.shape.n_out == 0 and i == hp.n_layer - 1
    if f.maybe(b + "attn_q.weight") is None:
        return None if only_writes else f.nothing(x)
    q = _heads(f, x, b + "attn_q", hp.head_dim)
    k = _heads(f, x, b + "attn_k", hp.head_dim)
    v = f.linear(x, b + "attn_v")
    q, k = _rotate(f, q, swa), _rotate(f, k, swa)
    q, k, v = _turn(f, q, f.cache.turn_k), _turn(f, k, f.cache.turn_k), _turn(f, v, f.cache.turn_v)
    k_table = gg.set_rows(f.graph.use(f.cache.k[i]), k.reshape(f.shape.n_rows, -1), f.kv_rows)
    v_table = gg.set_rows(f.graph.use(f.cache.v[i]), v, f.kv_rows)
    if only_writes:
        f.graph.do(k_table)
        f.graph.do(v_table)
        return None
    q = q.reshape(f.shape.n_seq, f.shape.n_tokens, -1, hp.head_dim).permute(0, 2, 1, 3)
    seen = attend(
        f, q, _window(f, k_table, hp.head_dim), _window(f, v_table, hp.head_dim_v), f.mask(swa), hp.attn_scale
    )
    seen = _turn(f, seen, f.cache.turn_v)
    return f.reduce(f.linear(seen, b + "attn_output"))


def _heads(f: Forward, x: gg.Tensor, name: str, head_dim: int) -> gg.Tensor:
    """Project to heads, [n_rows, n_head on this rank, head_dim], normed where the file says so."""
    heads = f.linear(x, name).reshape(f.shape.n_rows, -1, head_dim)
    return f.norm(heads, f"{name}_norm") if f.maybe(f"{name}_norm.weight") is not None else heads


def _rotate(f: Forward, heads: gg.Tensor, swa: bool) -> gg.Tensor:
    rope = f.hp.rope_swa if swa else f.hp.rope
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
        freq_factors=f.maybe("rope_freqs.weight"),
    )


def _turn(f: Forward, x: gg.Tensor, matrix: gg.Tensor | None) -> gg.Tensor:
    """Turn by the cache's Hadamard matrix, where it has one; twice is back."""
    return x if matrix is None else gg.hadamard(x, f.graph.use(matrix))


def _window(f: Forward, table: gg.Tensor, head_dim: int) -> gg.Tensor:
    """The visible rows of the slots of this batch, [n_seq, n_head_kv, n_kv, head_dim]."""
    s = f.shape
    row = table.strides[0]
    head = head_dim // table.dtype.block_size * table.dtype.type_size
    slot = f.cache.n_rows * row
    shape = (s.n_seq, s.n_kv, row // head, head_dim)
    window = gg.view(table, shape, (slot, row, head), s.slot0 * slot)
    return f.graph.let_move(window, 1, step=slot).permute(0, 2, 1, 3)


def attend(f: Forward, q: gg.Tensor, k: gg.Tensor, v: gg.Tensor, mask: gg.Tensor, scale: float) -> gg.Tensor:
    """softmax(q k^T * scale + mask) v.

    Shapes: q [n_seq, n_head, n_tokens, d], k and v [n_seq, n_head_kv, n_kv, d] ->
    [n_rows, n_head * d].
    """
    if k.dtype.name != "f32":
        fused = gg.flash_attn(q, k, v, mask, scale=scale)
        if f.graph.backend.supports(fused):
            return fused.reshape(f.shape.n_rows, -1)
    # The product of K and Q passes float16's range in some models: accumulate in float32.
    scores = gg.soft_max(gg.mul_mat(k, q, f32=True), mask, scale=scale)
    if v.dtype.is_quantized:
        v = v.cast("f32")
    seen = gg.mul_mat(v.T.cont(), scores)
    return seen.permute(0, 2, 1, 3).cont().reshape(f.shape.n_rows, -1)
