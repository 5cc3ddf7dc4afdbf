"""Random tensor data of any GGUF type, the same bytes on every machine.

Only the raw 64-bit stream of PCG64 is used (numpy promises to keep it), and only arithmetic that IEEE 754 rounds
in one way. Quantised tensors are random blocks with chosen scales, not quantised floats: no quantiser has a say.
"""

from __future__ import annotations

import hashlib

import numpy as np
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES

FLOAT_TYPES = ("F32", "F16", "BF16")

# Per type: byte offset of each half-precision field and its value as a multiple of d. The second field is a
# minimum: it moves the mean of the weights to about zero.
HALF_FIELDS: dict[str, tuple[tuple[int, float], ...]] = {
    "Q8_0": ((0, 1.0),),
    "Q4_0": ((0, 1.0),),
    "Q4_1": ((0, 1.0), (2, -7.5)),
    "Q5_0": ((0, 1.0),),
    "Q5_1": ((0, 1.0), (2, -15.5)),
    "Q2_K": ((80, 1.0), (82, 1.5)),
    "Q3_K": ((108, 1.0),),
    "Q4_K": ((0, 1.0), (2, 7.5)),
    "Q5_K": ((0, 1.0), (2, 15.5)),
    "Q6_K": ((208, 1.0),),
    "IQ2_XXS": ((0, 1.0),),
    "IQ2_XS": ((0, 1.0),),
    "IQ2_S": ((0, 1.0),),
    "IQ3_XXS": ((0, 1.0),),
    "IQ3_S": ((0, 1.0),),
    "IQ1_S": ((0, 1.0),),
    "IQ4_NL": ((0, 1.0),),
    "IQ4_XS": ((0, 1.0),),
}

# Standard deviation of the weights of random blocks with d = 1 (MXFP4: with exponent byte 127).
UNIT_STD = {
    "Q8_0": 74.7, "Q4_0": 4.655, "Q4_1": 4.659, "Q5_0": 9.32, "Q5_1": 9.336,
    "Q2_K": 14.04, "Q3_K": 43.85, "Q4_K": 260.4, "Q5_K": 535.1, "Q6_K": 1389.0,
    "IQ2_XXS": 53.85, "IQ2_XS": 56.26, "IQ2_S": 57.18, "IQ3_XXS": 143.0, "IQ3_S": 141.9, "IQ1_S": 7.284,
    "IQ4_NL": 67.94, "IQ4_XS": 1255.0, "MXFP4": 2.317,
}  # fmt: skip


class Draws:
    """A stream of random numbers named by a seed and a text."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self._bits = np.random.PCG64(int.from_bytes(digest[:16], "little"))

    def raw(self, n_bytes: int) -> np.ndarray:
        """`n_bytes` random bytes."""
        words = self._bits.random_raw(-(-n_bytes // 8)).astype("<u8")
        return words.view(np.uint8)[:n_bytes].copy()

    def bell(self, n: int) -> np.ndarray:
        """`n` float64 of mean 0 and standard deviation 1: sums of four 16-bit numbers, nearly normal."""
        quarters = self.raw(8 * n).view("<u2").reshape(n, 4)
        return (quarters.sum(axis=1, dtype=np.int64) - 2 * 65535) * (3**0.5 / 65536)

    def flat(self, n: int) -> np.ndarray:
        """`n` float64 evenly spread over [-1, 1)."""
        return self.raw(4 * n).view("<u4") * 2.0**-31 - 1.0


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest BF16 (ties to even), as uint16."""
    bits = x.astype("<f4").view("<u4")
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")


def float_bytes(quant: str, x: np.ndarray) -> np.ndarray:
    """The array as bytes of type `quant` (F32, F16 or BF16); the last axis becomes bytes."""
    if quant == "BF16":
        return to_bf16(x).view(np.uint8)
    return np.ascontiguousarray(x.astype("<f4" if quant == "F32" else "<f2")).view(np.uint8)


def random_tensor(draws: Draws, quant: str, shape: tuple[int, ...], std: float) -> np.ndarray:
    """Bytes of a random tensor whose weights have about mean 0 and standard deviation `std`.

    Shapes: `shape` is numpy order (outermost first); the result has the same shape with bytes as its last axis.
    """
    n = int(np.prod(shape))
    if quant in FLOAT_TYPES:
        return float_bytes(quant, (draws.bell(n) * std).reshape(shape))
    if quant not in UNIT_STD:
        raise ValueError(f"no random blocks for {quant}: use {', '.join((*FLOAT_TYPES, *UNIT_STD))}")
    n_weights, n_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[quant]]
    if shape[-1] % n_weights:
        raise ValueError(f"{quant} needs rows of a multiple of {n_weights} weights, not {shape[-1]}")
    n_blocks = n // n_weights
    blocks = draws.raw(n_blocks * n_bytes).reshape(n_blocks, n_bytes)
    if quant == "MXFP4":
        exponent = 127 + round(float(np.log2(std / UNIT_STD[quant])))
        blocks[:, 0] = exponent - (blocks[:, 0] & 1)
    else:
        d = (1.0 + draws.flat(n_blocks) / 4) * (std / UNIT_STD[quant])
        for offset, factor in HALF_FIELDS[quant]:
            blocks[:, offset : offset + 2] = (d * factor).astype("<f2").view(np.uint8).reshape(n_blocks, 2)
    return blocks.reshape(*shape[:-1], shape[-1] // n_weights * n_bytes)
