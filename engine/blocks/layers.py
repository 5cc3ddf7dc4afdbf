"""How attention and feed-forward are strung together in the layers of a stage: one after the other, or side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyggml as gg

from ..forward import Forward
from .attention import attention
from .experts import experts
from .feed_forward import Gate, feed_forward

Attend = Callable[[Forward, int, gg.Tensor], "gg.Tensor | None"]
Feed = Callable[[Forward, int, gg.Tensor], gg.Tensor]


@dataclass(frozen=True)
class Norms:
    """What a layer's norms are called: before and after attention and feed-forward, None where there is none.

    `post_eps` is the epsilon of those after, where it is not the model's.
    """

    attention: str | None = "attn_norm"
    post_attention: str | None = None
    feed_forward: str | None = "ffn_norm"
    post_feed_forward: str | None = None
    post_eps: float | None = None


PRE = Norms()
AROUND = Norms(post_attention="post_attention_norm", post_feed_forward="post_ffw_norm")
POST = Norms(None, "post_attention_norm", None, "post_ffw_norm")


def dense_or_experts(
    f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu, *, f32: bool = False
) -> gg.Tensor:
    """The feed-forward that layer i has."""
    return (experts if f.hp.has_experts(i) else feed_forward)(f, i, x, gate, f32=f32)


def sequential(
    f: Forward,
    *,
    norms: Norms = PRE,
    attend: Attend = attention,
    feed: Feed = dense_or_experts,
    end: Feed | None = None,
    x: gg.Tensor | None = None,
) -> gg.Tensor | None:
    """Attend and feed forward layer by layer, from `x` or the embedded tokens to the logits.

    `end` changes what a layer gives.     Returns None where the plan wants no logits or they come from another rank.
    """
    x = f.enter() if x is None else x
    for i in f.layers:
        seen = attend(f, i, _normed(f, i, x, norms.attention))
        if seen is None:
            return None
        if i == f.hp.n_layer - 1:
            seen, x = f.pick(seen), f.pick(x)
        x = _scaled(f, _normed(f, i, seen, norms.post_attention, norms.post_eps)) + x
        hidden = feed(f, i, _normed(f, i, x, norms.feed_forward))
        x = _scaled(f, _normed(f, i, hidden, norms.post_feed_forward, norms.post_eps)) + x
        x = x if end is None else end(f, i, x)
    return f.leave(x)


def parallel(f: Forward) -> gg.Tensor | None:
    """Attention and feed-forward of one normed input, both added to the residual."""
    x = f.enter()
    for i in f.layers:
        hidden = _normed(f, i, x, PRE.attention)
        seen = attention(f, i, hidden)
        if seen is None:
            return None
        if i == f.hp.n_layer - 1:
            seen, hidden, x = f.pick(seen), f.pick(hidden), f.pick(x)
        x = feed_forward(f, i, hidden) + x + seen
    return f.leave(x)


def _normed(f: Forward, i: int, x: gg.Tensor, name: str | None, eps: float | None = None) -> gg.Tensor:
    return x if name is None else f.norm(x, f"blk.{i}.{name}", eps)


def _scaled(f: Forward, x: gg.Tensor) -> gg.Tensor:
    return x if f.hp.residual_scale == 1.0 else x * f.hp.residual_scale
