"""Keys and values of all slots of one rank.

Per layer one table for K and one for V, [n_slots * n_ctx + 1, n_head_kv * head_dim], or one for both where V is
the first part of K (latent attention): slot s holds
rows s * n_ctx and on, and the last row of the table takes what padding tokens write. Memory is
zeroed, on the host as the window over it grows, since rows never written are read under a mask and must be finite.
Quantised caches hold K and V turned by a Hadamard matrix, which spreads outliers over a block and
costs less quality (https://github.com/ggml-org/llama.cpp/pull/21038); attention turns them back.
Owned by the rank's runner; used from the engine thread only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

import pyggml as gg

from .balance import Span
from .errors import ConfigError
from .head_cuts import kv_heads_of
from .hparams import HParams

WINDOW = 256  # rows; attention sees a multiple of it
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")


def round_up(n: int, multiple: int) -> int:
    """The next multiple at or above n."""
    return -(-n // multiple) * multiple


def cache_specs(
    hp: HParams,
    layers: Sequence[int],
    n_slots: int,
    n_ctx: int,
    type_k: str,
    type_v: str,
    heads: Span | None = None,
) -> dict[str, tuple[tuple[int, int], str]]:
    """Shapes and types of the tables, for allocation and for planning; `heads` are a rank's run of query heads.

    Raises ConfigError when a type is not a cache type or its blocks do not divide the heads.
    """
    specs: dict[str, tuple[tuple[int, int], str]] = {}
    rows = n_slots * round_up(n_ctx, WINDOW) + 1
    for i in layers:
        if hp.kv_layer(i) != i:
            continue
        kv = hp.heads(i)
        n_head_kv = len(kv_heads_of(heads or (0, hp.n_head), hp.n_head // kv.n_head_kv))
        parts = (("k", type_k, kv.head_dim), ("v", type_v, kv.head_dim_v))
        for part, kind, head_dim in parts if hp.has_v_cache else parts[:1]:
            _check_type(kind, head_dim)
            specs[f"{part}.{i}"] = (rows, n_head_kv * head_dim), kind
    return specs


def _check_type(kind: str, head_dim: int) -> None:
    if kind not in CACHE_TYPES:
        raise ConfigError(f"cache type {kind!r}; {', '.join(CACHE_TYPES)} are supported")
    block = gg.dtype(kind).block_size
    if head_dim % block:
        raise ConfigError(
            f"cache type {kind} has blocks of {block}, which do not divide heads of {head_dim}; use f16"
        )


def cache_bytes(hp: HParams, n_slots: int, n_ctx: int, type_k: str, type_v: str) -> int:
    """Bytes of the whole cache of one rank that holds every layer."""
    specs = cache_specs(hp, range(hp.n_layer), n_slots, n_ctx, type_k, type_v)
    total = 0
    for (rows, width), kind in specs.values():
        t = gg.dtype(kind)
        total += rows * (width // t.block_size) * t.type_size
    return total


def rotation_size(kind: str, head_dim: int, *, largest: bool) -> int:
    """Side of the Hadamard matrix for a cache of this type; 0 where none is used.

    64, or with `largest` the largest power of two that divides the heads.
    """
    if not gg.dtype(kind).is_quantized or head_dim % 64:
        return 0
    return head_dim & -head_dim if largest else 64


def hadamard_matrix(n: int) -> np.ndarray:
    """The orthonormal Hadamard matrix of a power of two, float32 [n, n] (Sylvester's construction)."""
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return (matrix / np.sqrt(n)).astype(np.float32)


class KVCache:
    """The cache of one rank: `k[i]` and `v[i]` are the tables of layer i, for the layers it holds.

    `heads` are the rank's run of query heads, which tells how many of K and V it holds.
    """

    def __init__(
        self,
        backend: gg.Backend,
        hp: HParams,
        *,
        n_slots: int,
        n_ctx: int,
        type_k: str = "f16",
        type_v: str = "f16",
        layers: range | None = None,
        heads: Span | None = None,
    ) -> None:
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        self.types = type_k, type_v
        self.n_rows = round_up(n_ctx, WINDOW)
        self.trash_row = n_slots * self.n_rows
        has_heads = heads is None or heads[0] < heads[1]
        held = (range(hp.n_layer) if layers is None else layers) if has_heads else ()
        specs = cache_specs(hp, held, n_slots, n_ctx, type_k, type_v, heads)
        self._buffer = gg.Buffer(backend, specs)
        self._rotations: list[gg.Buffer] = []
        self.k = {i: self._buffer[f"k.{i}"] for i in held if f"k.{i}" in specs}
        self.v = {i: self._buffer[f"v.{i}"] for i in held if f"v.{i}" in specs}
        of_layers = {hp.heads(i) for i in range(hp.n_layer)}
        in_k, in_v = (
            math.gcd(*(kv.head_dim for kv in of_layers)),
            math.gcd(*(kv.head_dim_v for kv in of_layers)),
        )
        if hp.has_v_cache:
            self.turn_k = self._rotation(backend, rotation_size(type_k, in_k, largest=True))
            self.turn_v = self._rotation(backend, rotation_size(type_v, in_v, largest=False))
        else:
            size = rotation_size(type_k, math.gcd(in_k, in_v), largest=True)
            self.turn_k = self.turn_v = self._rotation(backend, size)
        self._tables = [*self.k.values(), *self.v.values()]
        # A card zeroes all at once; in host memory pages that nobody uses stay untouched.
        is_on_host = backend.device.kind == "cpu"
        self._zeroed = [0 if is_on_host else self.n_rows] * n_slots
        if is_on_host:
            for table in self._tables:
                table.zero(start_row=self.trash_row, n_rows=1)
        else:
            self._buffer.clear()

    def _rotation(self, backend: gg.Backend, n: int) -> gg.Tensor | None:
        if n == 0:
            return None
        buffer = gg.Buffer(backend, {"hadamard": ((n, n), "f32")})
        self._rotations.append(buffer)
        buffer["hadamard"].set(hadamard_matrix(n))
        return buffer["hadamard"]

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device."""
        return self._buffer.n_bytes

    def expose(self, slot0: int, n_seq: int, n_kv: int) -> None:
        """Make the first n_kv rows of these slots readable, zeroing those never exposed before."""
        for slot in range(slot0, slot0 + n_seq):
            start = self._zeroed[slot]
            if start >= n_kv:
                continue
            for table in self._tables:
                table.zero(start_row=slot * self.n_rows + start, n_rows=n_kv - start)
            self._zeroed[slot] = n_kv

    def forget(self, slot: int) -> None:
        """Have a slot's rows zeroed before they are read again."""
        self._zeroed[slot] = 0

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        """Copy rows `start` to `stop` of one slot to another, on the device."""
        names = [*(f"k.{i}" for i in self.k), *(f"v.{i}" for i in self.v)]
        n = self.n_rows
        self._buffer.copy_rows(names, start=source * n + start, to=slot * n + start, n_rows=stop - start)
        self._zeroed[slot] = max(self._zeroed[slot], stop)

    def row_bytes(self) -> list[int]:
        """Bytes of a row of each table, in the order of read() and write()."""
        return [table.strides[0] for table in self._tables]

    def read(self, slot: int, n: int) -> list[np.ndarray]:
        """The bytes of the first n rows of a slot, an array a table."""
        return [table.read_rows(slot * self.n_rows, n) for table in self._tables]

    def write(self, slot: int, start: int, parts: Sequence[np.ndarray]) -> None:
        """Set rows of a slot from `start` on; `parts` are their bytes, an array a table."""
        for table, part in zip(self._tables, parts, strict=True):
            table.set(part, offset=(slot * self.n_rows + start) * table.strides[0])
            self._zeroed[slot] = max(self._zeroed[slot], start + len(part) // table.strides[0])

    def close(self) -> None:
        """Free the device memory."""
        self._buffer.close()
        for buffer in self._rotations:
            buffer.close()
