"""The feed-forward of dense layers, with a gate or without."""

from __future__ import annotations

from collections.abc import Callable

import pyggml as gg

from ..forward import Forward

# Of gate and up, or of up alone where there is no gate.
Gate = Callable[..., gg.Tensor]


def squared_relu(x: gg.Tensor) -> gg.Tensor:
    """max(x, 0) squared."""
    return gg.sqr(gg.relu(x))


def feed_forward(f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu, *, f32: bool = False) -> gg.Tensor:
    """down(gate(gate_proj(x), up_proj(x))), or down(gate(up_proj(x))) where the file has no gate.

    Shapes: [n, n_embd] -> [n, n_embd], reduced over ranks. `f32` asks for float32 accumulation of the last product.
    """
    part = dense(f, i, x, gate, f32=f32)
    return f.nothing(x) if part is None else f.reduce(part)


def dense(
    f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu, *, suffix: str = "", f32: bool = False
) -> gg.Tensor | None:
    """This rank's part of a feed-forward, of which the ranks' sum is the whole; None where it has none."""
    gated, up, down = (f"blk.{i}.ffn_{name}{suffix}" for name in ("gate", "up", "down"))
    if f.maybe(f"{down}.weight") is None:
        return None
    operands = [f.linear(x, name) for name in (gated, up) if f.maybe(f"{name}.weight") is not None]
    return f.linear(gate(*operands), down, f32=f32)
