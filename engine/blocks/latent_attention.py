"""Latent attention: K and V of all heads come from one narrow vector a position (https://arxiv.org/abs/2405.04434).

The cache holds that vector alone. Queries are brought into its space, attend there as if it were one head that all
share, and what they have seen is projected to heads afterwards. Files of older converters lack the matrices for that;
with those, whole heads are made and cached.
"""

from __future__ import annotations

import pyggml as gg

from ..forward import Forward
from .attention import attend_cached, only_writes, rotate


def latent_attention(f: Forward, i: int, x: gg.Tensor) -> gg.Tensor | None:
    """Attend from the normed input of layer i, as attention() does."""
    b, latent = f"blk.{i}.", f.hp.latent
    assert latent is not None, "the family has latent attention"
    if f.maybe(b + "attn_output.weight") is None:
        return None if only_writes(f, i) else f.nothing(x)
    q = f.linear(
        f.norm(f.linear(x, b + "attn_q_a"), b + "attn_q_a_norm") if latent.n_lora_q else x, _query(f, b)
    )
    q = q.reshape(f.shape.n_rows, -1, latent.n_nope + latent.n_rope)
    both = f.linear(x, b + "attn_kv_a_mqa")
    shared = f.norm(both[:, : latent.n_lora_kv], b + "attn_kv_a_norm")
    k_turned = rotate(f, i, both[:, latent.n_lora_kv :].cont().reshape(f.shape.n_rows, 1, -1))
    q_plain, q_turned = q[:, :, : latent.n_nope], rotate(f, i, q[:, :, latent.n_nope :])
    seen = (_absorbed if latent.is_absorbed else _whole)(f, i, q_plain, q_turned, shared, k_turned)
    return None if seen is None else f.reduce(f.linear(seen, b + "attn_output"))


def _query(f: Forward, b: str) -> str:
    return b + ("attn_q" if f.maybe(b + "attn_q.weight") is not None else "attn_q_b")


def _absorbed(
    f: Forward, i: int, q_plain: gg.Tensor, q_turned: gg.Tensor, shared: gg.Tensor, k_turned: gg.Tensor
) -> gg.Tensor | None:
    """Attend in the space of the shared vector, then project to heads, [n_rows, n_head * head_dim_v]."""
    n_rows, b = f.shape.n_rows, f"blk.{i}."
    # [n_head, n_rows, n_nope] -> [n_rows, n_head, n_lora_kv]
    q = gg.mul_mat(f.weight(b + "attn_k_b.weight"), q_plain.permute(1, 0, 2)).permute(1, 0, 2)
    q = _grown(f, gg.concat(q, q_turned, -1))
    k = gg.concat(shared.reshape(n_rows, 1, -1), k_turned, -1)
    seen = attend_cached(f, i, q, k, None)
    if seen is None:
        return None
    heads = seen.reshape(n_rows, q.shape[1], -1).permute(1, 0, 2)
    return gg.mul_mat(f.weight(b + "attn_v_b.weight"), heads).permute(1, 0, 2).cont().reshape(n_rows, -1)


def _whole(
    f: Forward, i: int, q_plain: gg.Tensor, q_turned: gg.Tensor, shared: gg.Tensor, k_turned: gg.Tensor
) -> gg.Tensor | None:
    """Make whole heads of K and V and attend to those."""
    latent, n_rows, n_head = f.hp.latent, f.shape.n_rows, q_plain.shape[1]
    assert latent is not None, "the family has latent attention"
    heads = f.linear(shared, f"blk.{i}.attn_kv_b").reshape(n_rows, n_head, -1)
    k = gg.concat(heads[:, :, : latent.n_nope], gg.repeat(k_turned, (n_rows, n_head, latent.n_rope)), -1)
    q = _grown(f, gg.concat(q_plain, q_turned, -1))
    return attend_cached(f, i, q, k, heads[:, :, latent.n_nope :].cont().reshape(n_rows, -1))


def _grown(f: Forward, q: gg.Tensor) -> gg.Tensor:
    return q if f.hp.temperature is None else q * f.temperature()
