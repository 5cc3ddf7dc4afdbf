"""The key-value pairs of one GGUF file, decoded when they are asked for.

Works on a header that was already checked: positions are trusted here. Text that is not UTF-8 keeps
its bytes by `surrogateescape`. Safe to read from several threads; values are shared, arrays read-only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .errors import ClosedError

# The format's names by number; an array's type is its elements' with [] after it.
VALUE_TYPES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64")
NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in zip(VALUE_TYPES, "u1 i1 u2 i2 u4 i4 f4 ? - - u8 i8 f8".split())
    if code != "-"
}


@dataclass(frozen=True)
class Pair:
    """Where a value lies in the file, strings with their length fields, and how many elements it has."""

    at: int
    n_bytes: int
    n: int
    type: str
    is_array: bool


class GGUFMetadata(Mapping[str, Any]):
    """A file's keys with their values: str, int, float, bool, list[str], or numpy arrays.

    `types` gives each key's type in the file, such as "u32" or "str[]".
    """

    def __init__(self, pairs: Mapping[str, Pair], data: memoryview) -> None:
        self._pairs = pairs
        self._data: memoryview | None = data
        self._values: dict[str, Any] = {}
        self.types = {key: p.type + "[]" * p.is_array for key, p in pairs.items()}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = _decode(self._data, self._pairs[key])
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._pairs

    def __iter__(self) -> Iterator[str]:
        return iter(self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def close(self) -> None:
        """Let go of the file; values that were read already stay."""
        self._data = None


def _decode(data: memoryview | None, pair: Pair) -> Any:
    if data is None:
        raise ClosedError("the GGUF file was closed; read its metadata before that")
    raw = data[pair.at : pair.at + pair.n_bytes]
    if pair.type == "str":
        strings = _strings(raw, pair.n)
        return strings if pair.is_array else strings[0]
    if pair.type == "bool":
        values = np.frombuffer(raw, np.uint8) != 0
    else:
        values = np.frombuffer(raw, NUMPY_TYPES[pair.type]).copy()
    values.flags.writeable = False
    return values if pair.is_array else values[0].item()


def _strings(raw: memoryview, n: int) -> list[str]:
    joined = bytearray(len(raw) - 7 * n)
    n_zeros = lib.pg_gguf_join_strings(ffi.from_buffer(raw), n, ffi.from_buffer(joined))
    if n_zeros == 0:
        return joined.decode("utf-8", "surrogateescape").split("\0")[:-1]
    strings, at = [], 0
    for _ in range(n):
        end = at + 8 + int.from_bytes(raw[at : at + 8], "little")
        strings.append(str(raw[at + 8 : end], "utf-8", "surrogateescape"))
        at = end
    return strings
