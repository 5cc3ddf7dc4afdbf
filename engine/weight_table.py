"""The rows of a family's table of weights: names, shapes, how each is cut over ranks.

Pure data. The loader, the planner and the error messages all read the same rows.
Shapes are in numpy order: a projection is [n_out, n_in], a set of experts [n_expert, n_out, n_in].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from .hparams import HParams


class Cut(Enum):
    """How a weight is divided among tensor-parallel ranks."""

    REPLICATED = "replicated"
    VOCAB = "vocab"
    HEADS = "heads"  # output rows, by query head
    HEADS_KV = "heads_kv"  # output rows, by key/value head
    HEADS_IN = "heads_in"  # input columns, by query head
    OUT = "out"  # output rows of a feed-forward matrix
    IN = "in"  # input columns of a feed-forward matrix


class Use(Enum):
    """Which operation reads a weight; it decides the buffer type."""

    ELEMENT = "element"
    MUL_MAT = "mul_mat"
    MUL_MAT_ID = "mul_mat_id"
    GET_ROWS = "get_rows"


@dataclass(frozen=True)
class Source:
    """Another tensor that a weight may be taken from: all of it, or as much as it has along `axis` from `start` on."""

    name: str
    shape: tuple[int, ...]
    start: int = 0
    axis: int = 0


@dataclass(frozen=True)
class Weight:
    """One row of the table. `source` is what to take where the file has no tensor of this name and shape."""

    name: str
    shape: tuple[int, ...]
    cut: Cut = Cut.REPLICATED
    use: Use = Use.ELEMENT
    optional: bool = False
    source: Source | None = None


def norm_rows(name: str, n: int, *, optional: bool = False) -> Iterator[Weight]:
    """A norm with its optional bias."""
    yield Weight(f"{name}.weight", (n,), optional=optional)
    yield Weight(f"{name}.bias", (n,), optional=True)


def scale_rows(name: str, n: int = 1) -> Iterator[Weight]:
    """What the results of a projection are multiplied by in files of some types, or those of each expert."""
    yield Weight(f"{name}.scale", (n,), optional=True)


def embedding_rows(hp: HParams) -> Iterator[Weight]:
    """Token embedding, last norm and head; the head falls back to the embedding."""
    table = (hp.n_vocab, hp.n_embd)
    yield Weight("token_embd.weight", table, Cut.REPLICATED, Use.GET_ROWS)
    yield from norm_rows("output_norm", hp.n_embd)
    yield Weight("output.weight", table, Cut.VOCAB, Use.MUL_MAT, source=Source("token_embd.weight", table))
    yield Weight("output.bias", (hp.n_vocab,), Cut.VOCAB, optional=True)
    yield from scale_rows("output")
    yield Weight("rope_freqs.weight", (hp.rope.n_dims // 2,), optional=True)
    yield Weight("rope_factors_long.weight", (hp.rope.n_dims // 2,), optional=True)
    yield Weight("rope_factors_short.weight", (hp.rope.n_dims // 2,), optional=True)


def attention_rows(
    hp: HParams, i: int, *, norm: str | None = "attn_norm", has_own_qk_norms: bool = False
) -> Iterator[Weight]:
    """Norm, projections with optional biases and optional norms of Q and K.

    Q, K and V may lie in one tensor. Q and K are normed head by head, all heads alike or each with weights of its
    own (`has_own_qk_norms`), or by hp over all heads at once.
    """
    kv, b = hp.heads(i), f"blk.{i}."
    q, k, v = hp.n_head * kv.head_dim, kv.n_head_kv * kv.head_dim, kv.n_head_kv * kv.head_dim_v
    if norm:
        yield from norm_rows(b + norm, hp.n_embd)
    for name, n_out, start, cut in (
        ("attn_q", q, 0, Cut.HEADS),
        ("attn_k", k, q, Cut.HEADS_KV),
        ("attn_v", v, q + k, Cut.HEADS_KV),
    ):
        fused = Source(b + "attn_qkv.weight", (q + k + v, hp.n_embd), start)
        yield Weight(f"{b}{name}.weight", (n_out, hp.n_embd), cut, Use.MUL_MAT, source=fused)
        fused = Source(b + "attn_qkv.bias", (q + k + v,), start)
        yield Weight(f"{b}{name}.bias", (n_out,), cut, optional=True, source=fused)
        fused = Source(b + "attn_qkv.scale", (1,))
        yield Weight(f"{b}{name}.scale", (1,), optional=True, source=fused)
    yield Weight(b + "attn_output.weight", (hp.n_embd, hp.n_head * kv.head_dim_v), Cut.HEADS_IN, Use.MUL_MAT)
    yield Weight(b + "attn_output.bias", (hp.n_embd,), optional=True)
    yield from scale_rows(b + "attn_output")
    for name, n_head, cut in (
        ("attn_q_norm", hp.n_head, Cut.HEADS),
        ("attn_k_norm", kv.n_head_kv, Cut.HEADS_KV),
    ):
        if has_own_qk_norms:
            yield Weight(f"{b}{name}.weight", (n_head, kv.head_dim), cut, optional=True)
        elif hp.has_wide_qk_norm:
            yield Weight(f"{b}{name}.weight", (n_head * kv.head_dim,), cut)
        else:
            yield Weight(f"{b}{name}.weight", (kv.head_dim,), optional=True)


def feed_forward_rows(hp: HParams, i: int, *, has_gate: bool = True, suffix: str = "") -> Iterator[Weight]:
    """The matrices of a feed-forward, gated or not, with optional biases; gate and up may lie in one tensor."""
    b = f"blk.{i}."
    n_ff = hp.n_ff_shexp if suffix == "_shexp" else hp.n_ff_of(i)
    for n, name in enumerate(("ffn_gate", "ffn_up") if has_gate else ("ffn_up",)):
        name = f"{b}{name}{suffix}"
        both = Source(f"{b}ffn_up{suffix}.weight", (2 * n_ff, hp.n_embd), n * n_ff) if has_gate else None
        yield Weight(f"{name}.weight", (n_ff, hp.n_embd), Cut.OUT, Use.MUL_MAT, source=both)
        yield Weight(f"{name}.bias", (n_ff,), Cut.OUT, optional=True)
        yield from scale_rows(name)
    yield from scale_rows(f"{b}ffn_down{suffix}")
    yield Weight(f"{b}ffn_down{suffix}.weight", (hp.n_embd, n_ff), Cut.IN, Use.MUL_MAT)
    yield Weight(f"{b}ffn_down{suffix}.bias", (hp.n_embd,), optional=True)


def expert_rows(hp: HParams, i: int) -> Iterator[Weight]:
    """Router, the experts' matrices, and what all tokens go through beside them."""
    b = f"blk.{i}."
    n, n_ff = hp.n_expert, hp.n_ff_exp
    yield Weight(b + "ffn_gate_inp.weight", (n, hp.n_embd), Cut.REPLICATED, Use.MUL_MAT)
    yield Weight(b + "ffn_gate_inp.bias", (n,), optional=True)
    yield Weight(b + "exp_probs_b.bias", (n,), optional=True)
    for part, name in enumerate(("ffn_gate_exps", "ffn_up_exps")):
        both = Source(b + "ffn_gate_up_exps.weight", (n, 2 * n_ff, hp.n_embd), part * n_ff, axis=1)
        yield Weight(f"{b}{name}.weight", (n, n_ff, hp.n_embd), Cut.OUT, Use.MUL_MAT_ID, source=both)
        yield Weight(f"{b}{name}.bias", (n, n_ff), Cut.OUT, optional=True)
        yield from scale_rows(b + name, n)
    yield from scale_rows(b + "ffn_down_exps", n)
    yield Weight(b + "ffn_down_exps.weight", (n, hp.n_embd, n_ff), Cut.IN, Use.MUL_MAT_ID)
    yield Weight(b + "ffn_down_exps.bias", (n, hp.n_embd), optional=True)
    if hp.n_ff_shexp:
        yield from feed_forward_rows(hp, i, suffix="_shexp")
        yield Weight(b + "ffn_gate_inp_shexp.weight", (hp.n_embd,), optional=True)


def layer_rows(hp: HParams, i: int, *, ffn_norm: str = "ffn_norm") -> Iterator[Weight]:
    """A layer of attention and, by `has_experts`, a dense or an expert feed-forward."""
    yield from attention_rows(hp, i)
    yield from norm_rows(f"blk.{i}.{ffn_norm}", hp.n_embd)
    yield from (expert_rows if hp.has_experts(i) else feed_forward_rows)(hp, i)
