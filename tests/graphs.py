"""One-off graphs for tests: arrays in, an array out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import pyggml as gg


@functools.cache
def cpu() -> gg.Backend:
    """One backend for all small graphs."""
    return gg.Backend("cpu", threads=1)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal float32 numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def compute(
    build: Callable[..., gg.Tensor], *arrays: np.ndarray, kinds: Sequence[str] | Mapping[int, str] = ()
) -> np.ndarray:
    """Run `build` on inputs that hold the arrays; `kinds` names types other than the arrays' own.

    Types that cannot be inputs become weights.
    """
    named = dict(enumerate(kinds)) if not isinstance(kinds, Mapping) else dict(kinds)
    with gg.Graph(cpu()) as g:
        operands, values = [], {}
        for i, array in enumerate(arrays):
            kind = gg.dtype(named.get(i, array.dtype))
            if kind.numpy is None:
                operands.append(g.weight(array, type=kind))
            else:
                values[f"x{i}"] = array.astype(kind.numpy)
                operands.append(g.input(f"x{i}", array.shape, kind))
        g.output("y", build(*operands))
        return g.run(**values)["y"]


def stored(array: np.ndarray, kind: str) -> np.ndarray:
    """The numbers that are left of an array once it is stored in a type."""
    return gg.dequantize(gg.quantize(array, kind), kind, array.shape)


def with_weights(
    build: Callable[..., gg.Tensor], inputs: Mapping[str, np.ndarray], **weights: Any
) -> np.ndarray:
    """Run `build(**tensors)`; a weight is an array or a pair of array and type."""
    with gg.Graph(cpu()) as g:
        tensors = {n: g.input(n, a.shape, gg.dtype(a.dtype)) for n, a in inputs.items()}
        for name, weight in weights.items():
            array, kind = weight if isinstance(weight, tuple) else (weight, None)
            tensors[name] = g.weight(array, type=kind)
        g.output("y", build(**tensors))
        return g.run(**inputs)["y"]
