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
class Weight:
    """One row of the table. `source` is the tensor to take when the file lacks `name`."""

    name: str
    shape: tuple[int, ...]
    cut: Cut = Cut.REPLICATED
    use: Use = Use.ELEMENT
    optional: bool = False
    source: str | None = None


def embedding_rows(hp: HParams) -> Iterator[Weight]:
    """Token embedding, last norm and head; the head falls back to the embedding."""
    yield Weight("token_embd.weight", (hp.n_vocab, hp.n_embd), Cut.REPLICATED, Use.GET_ROWS)
    yield Weight("output_norm.weight", (hp.n_embd,))
    yield Weight("output.weight", (hp.n_vocab, hp.n_embd), Cut.VOCAB, Use.MUL_MAT, source="token_embd.weight")
    yield Weight("rope_freqs.weight", (hp.rope.n_dims // 2,), optional=True)


def attention_rows(hp: HParams, i: int) -> Iterator[Weight]:
    """Norm, projections with optional biases and optional norms of Q and K."""
    q, k, v = hp.n_head * hp.head_dim, hp.n_head_kv * hp.head_dim, hp.n_head_kv * hp.head_dim_v
    b = f"blk.{i}."
    yield Weight(b + "attn_norm.weight", (hp.n_embd,))
    for name, n_out, cut in (
        ("attn_q", q, Cut.HEADS),
        ("attn_k", k, Cut.HEADS_KV),
        ("attn_v", v, Cut.HEADS_KV),
    ):
        yield Weight(f"{b}{name}.weight", (n_out, hp.n_embd), cut, Use.MUL_MAT)
        yield Weight(f"{b}{name}.bias", (n_out,), cut, optional=True)
    yield Weight(b + "attn_output.weight", (hp.n_embd, hp.n_head * hp.head_dim_v), Cut.HEADS_IN, Use.MUL_MAT)
    yield Weight(b + "attn_output.bias", (hp.n_embd,), optional=True)
    yield Weight(b + "attn_q_norm.weight", (hp.head_dim,), optional=True)
    yield Weight(b + "attn_k_norm.weight", (hp.head_dim,), optional=True)


def feed_forward_rows(hp: HParams, i: int) -> Iterator[Weight]:
    """Norm and the three matrices of a gated feed-forward with optional biases."""
    b = f"blk.{i}."
    yield Weight(b + "ffn_norm.weight", (hp.n_embd,))
    for name in ("ffn_gate", "ffn_up"):
        yield Weight(f"{b}{name}.weight", (hp.n_ff, hp.n_embd), Cut.OUT, Use.MUL_MAT)
        yield Weight(f"{b}{name}.bias", (hp.n_ff,), Cut.OUT, optional=True)
    yield Weight(b + "ffn_down.weight", (hp.n_embd, hp.n_ff), Cut.IN, Use.MUL_MAT)
    yield Weight(b + "ffn_down.bias", (hp.n_embd,), optional=True)


def expert_rows(hp: HParams, i: int) -> Iterator[Weight]:
    """Norm, router and the experts' matrices."""
    b = f"blk.{i}."
    yield Weight(b + "ffn_norm.weight", (hp.n_embd,))
    yield Weight(b + "ffn_gate_inp.weight", (hp.n_expert, hp.n_embd), Cut.REPLICATED, Use.MUL_MAT)
    for name in ("ffn_gate_exps", "ffn_up_exps"):
        yield Weight(f"{b}{name}.weight", (hp.n_expert, hp.n_ff_exp, hp.n_embd), Cut.OUT, Use.MUL_MAT_ID)
    yield Weight(b + "ffn_down_exps.weight", (hp.n_expert, hp.n_embd, hp.n_ff_exp), Cut.IN, Use.MUL_MAT_ID)


def layer_rows(hp: HParams, i: int) -> Iterator[Weight]:
    """A layer of attention and, by `n_expert`, a dense or an expert feed-forward."""
    yield from attention_rows(hp, i)
    yield from (expert_rows if hp.n_expert else feed_forward_rows)(hp, i)
