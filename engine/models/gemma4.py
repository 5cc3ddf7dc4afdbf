"""Gemma 4, dense (31B, E2B, E4B) and with experts (26B): windowed layers with heads of their own, values normed.

Values may be the keys before their norm. Experts stand beside the dense feed-forward, each with norms of its own. The
small models add to each layer what an embedding of its own says of the token, and their last layers attend to keys and
values of earlier ones.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pyggml as gg

from ..blocks.attention import attend_cached, only_writes, rotate
from ..blocks.experts import routed
from ..blocks.feed_forward import feed_forward
from ..blocks.layers import AROUND, sequential
from ..forward import Forward
from ..hparams import MAX_LAYERS, Heads, HParams, read_hparams, with_windows
from ..keys import Keys
from ..weight_table import (
    Source,
    Use,
    Weight,
    attention_rows,
    embedding_rows,
    expert_rows,
    feed_forward_rows,
    norm_rows,
)
from .family import Family

_PATTERN = "truth values, one a layer, some of them true, and a window above 0"
# The norms before the feed-forward are its own.
_NORMS = replace(AROUND, feed_forward=None)


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    for row in embedding_rows(hp):
        yield replace(row, shape=(hp.head_dim // 2,)) if row.name == "rope_freqs.weight" else row
    n = hp.n_embd_per_layer
    if n:
        yield Weight("per_layer_token_embd.weight", (hp.n_vocab, n * hp.n_layer), use=Use.GET_ROWS)
        yield Weight("per_layer_model_proj.weight", (n * hp.n_layer, hp.n_embd), use=Use.MUL_MAT)
        yield Weight("per_layer_proj_norm.weight", (n,))
    for i in range(hp.n_layer):
        yield from _layer_rows(hp, i)


def _layer_rows(hp: HParams, i: int) -> Iterator[Weight]:
    b, n = f"blk.{i}.", hp.n_embd_per_layer
    for row in attention_rows(hp, i):
        if hp.kv_layer(i) != i and row.name.startswith((b + "attn_k", b + "attn_v")):
            yield replace(row, optional=True, source=None)
        elif row.name == b + "attn_v.weight":
            yield replace(row, source=Source(b + "attn_k.weight", row.shape))
        else:
            yield row
    yield from feed_forward_rows(hp, i)
    for name in ("post_attention_norm", "ffn_norm", "post_ffw_norm"):
        yield from norm_rows(b + name, hp.n_embd)
    yield Weight(b + "layer_output_scale.weight", (1,), optional=True)
    if hp.n_expert:
        yield from expert_rows(hp, i)
        yield Weight(b + "ffn_gate_inp.scale", (hp.n_embd,))
        for name in ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"):
            yield from norm_rows(b + name, hp.n_embd)
    if n:
        yield Weight(b + "inp_gate.weight", (n, hp.n_embd), use=Use.MUL_MAT)
        yield Weight(b + "proj.weight", (hp.n_embd, n), use=Use.MUL_MAT)
        yield Weight(b + "post_norm.weight", (hp.n_embd,))


def forward(f: Forward) -> gg.Tensor | None:
    """As Gemma 3's, with what a token adds to each layer."""
    x = f.enter()
    by_layer = _by_layer(f, x) if f.hp.n_embd_per_layer else None
    end = partial(_end, by_layer=by_layer)
    return sequential(f, norms=_NORMS, attend=_attention, feed=_feed, end=end, x=x)


def _attention(f: Forward, i: int, x: gg.Tensor) -> gg.Tensor | None:
    b, heads = f"blk.{i}.", f.hp.heads(i)
    if f.maybe(b + "attn_q.weight") is None:
        return None if only_writes(f, i) else f.nothing(x)
    shape = (f.shape.n_rows, -1, heads.head_dim)
    q = rotate(f, i, f.norm(f.linear(x, b + "attn_q").reshape(*shape), b + "attn_q_norm"))
    k = v = None
    if f.hp.kv_layer(i) == i:
        k = rotate(f, i, f.norm(f.linear(x, b + "attn_k").reshape(*shape), b + "attn_k_norm"))
        v = gg.rms_norm(f.linear(x, b + "attn_v").reshape(*shape), f.hp.norm_eps).reshape(f.shape.n_rows, -1)
    seen = attend_cached(f, i, q, k, v)
    return None if seen is None else f.reduce(f.linear(seen, b + "attn_output"))


def _feed(f: Forward, i: int, x: gg.Tensor) -> gg.Tensor:
    hp, b = f.hp, f"blk.{i}."
    hidden = feed_forward(f, i, f.norm(x, b + "ffn_norm"), gg.geglu)
    if not hp.n_expert:
        return hidden
    scaled = gg.rms_norm(x, hp.norm_eps) * hp.n_embd**-0.5 * f.weight(b + "ffn_gate_inp.scale")
    logits = gg.mul_mat(f.weight(b + "ffn_gate_inp.weight"), scaled)
    part = routed(f, i, f.norm(x, b + "pre_ffw_norm_2"), logits, gate=gg.geglu)
    chosen = f.nothing(x) if part is None else f.reduce(part)
    return f.norm(hidden, b + "post_ffw_norm_1") + f.norm(chosen, b + "post_ffw_norm_2")


def _by_layer(f: Forward, x: gg.Tensor) -> gg.Tensor:
    """What the token and its embedding say to each layer, [n_rows, n_layer, n_embd_per_layer]."""
    hp, n = f.hp, f.hp.n_embd_per_layer
    shape = (f.shape.n_rows, hp.n_layer, n)
    rows = f.rows("per_layer_token_embd.weight", n * hp.n_layer).reshape(*shape) * n**0.5
    made = (f.linear(x, "per_layer_model_proj") * hp.n_embd**-0.5).reshape(*shape)
    return (f.norm(made, "per_layer_proj_norm") + rows) * 0.5**0.5


def _end(f: Forward, i: int, x: gg.Tensor, *, by_layer: gg.Tensor | None) -> gg.Tensor:
    b = f"blk.{i}."
    if by_layer is not None:
        said = by_layer[:, i, :].cont()
        said = f.pick(said) if i == f.hp.n_layer - 1 else said
        gated = gg.gelu(f.linear(x, b + "inp_gate")) * said
        x = f.norm(f.linear(gated, b + "proj"), b + "post_norm") + x
    scale = f.maybe(b + "layer_output_scale.weight")
    return x if scale is None else x * scale


def _hparams(metadata: Mapping[str, Any], arch: str, n_vocab: int) -> HParams:
    """Numbers that files give layer by layer: one of each kind of layer, and the widths of feed-forwards."""
    keys = Keys(metadata, arch)
    n_layer = keys.integer("block_count", 1, MAX_LAYERS)
    n_head_kv = keys.by_layer(
        "attention.head_count_kv", n_layer, 1, default=keys.integer("attention.head_count", 1)
    )
    n_ffs = keys.by_layer("feed_forward_length", n_layer, 1, default=1)
    first = {f"{arch}.attention.head_count_kv": max(n_head_kv), f"{arch}.feed_forward_length": max(n_ffs)}
    hp = read_hparams(ChainMap(first, metadata), arch, n_vocab=n_vocab, neox=True)  # type: ignore[arg-type]
    hp = with_windows(hp, keys, period=1, freq_base=10000.0)
    if not any(hp.is_swa):
        raise keys.refused(
            "attention.sliding_window_pattern", keys.get("attention.sliding_window_pattern"), _PATTERN
        )
    full, windowed = _of_kinds(hp, keys, n_head_kv)
    head_dim = keys.integer("attention.key_length_swa", 1, default=hp.head_dim)
    n_rot = keys.integer("rope.dimension_count_swa", 2, head_dim, min(head_dim, hp.rope.n_dims))
    n_shared = keys.integer("attention.shared_kv_layers", 0, hp.n_layer - 1, default=0)
    if n_shared and len({hp.is_swa[i] for i in range(hp.n_layer - n_shared)}) < 2:
        raise keys.refused(
            "attention.shared_kv_layers", n_shared, "such that a layer of each kind keeps its own"
        )
    return replace(
        hp,
        n_head_kv=full,
        heads_swa=Heads(windowed, head_dim, keys.integer("attention.value_length_swa", 1, default=head_dim)),
        rope_swa=replace(hp.rope_swa, n_dims=n_rot, freq_scale=1.0, has_factors=False),
        n_ffs=n_ffs,
        n_layer_kv=hp.n_layer - n_shared if n_shared else 0,
        n_embd_per_layer=keys.integer("embedding_length_per_layer_input", 0, default=0),
        attn_scale=1.0,
        embedding_scale=hp.n_embd**0.5,
        final_softcap=keys.number("final_logit_softcapping", 0.0, default=30.0),
    )


def _of_kinds(hp: HParams, keys: Keys, n_head_kv: tuple[int, ...]) -> tuple[int, int]:
    """Key/value heads of layers without a window and with one."""
    kinds = [{n for n, kind in zip(n_head_kv, hp.is_swa) if kind == is_swa} for is_swa in (False, True)]
    if any(len(kind) > 1 or any(hp.n_head % n for n in kind) for kind in kinds):
        needed = f"one divisor of head_count = {hp.n_head} for each kind of layer"
        raise keys.refused("attention.head_count_kv", n_head_kv, needed)
    full, windowed = (min(kind, default=hp.n_head_kv) for kind in kinds)
    return full, windowed


FAMILIES = {"gemma4": Family("gemma4", _hparams, table, forward)}
