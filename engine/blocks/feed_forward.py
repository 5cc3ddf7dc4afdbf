"""The gated feed-forward of dense layers."""

from __future__ import annotations

from collections.abc import Callable

import pyggml as gg

from ..forward import Forward

Gate = Callable[[gg.Tensor, gg.Tensor], gg.Tensor]


def feed_forward(f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu) -> gg.Tensor:
    """down(gate(gate_proj(x), up_proj(x))); `gate` is pyggml's swiglu or geglu.

    Shapes: [n, n_embd] -> [n, n_embd], reduced over ranks.
    """
    b = f"blk.{i}."
    if f.maybe(b + "ffn_down.weight") is None:
        return f.nothing(x)
    hidden = gate(f.linear(x, b + "ffn_gate"), f.linear(x, b + "ffn_up"))
    return f.reduce(f.linear(hidden, b + "ffn_down"))
