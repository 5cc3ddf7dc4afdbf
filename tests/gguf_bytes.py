"""GGUF files byte by byte, so that tests can write what no writer would."""

from __future__ import annotations

import struct

U32, ARRAY, STRING = 4, 9, 8
F32, Q8_0 = 0, 8


def head(n_tensors: int, n_kv: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    """The fixed part of a header."""
    return magic + struct.pack("<IQQ", version, n_tensors, n_kv)


def string(text: str | bytes) -> bytes:
    """A string with its length before it."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def u32(key: str | bytes, value: int) -> bytes:
    """A key with one u32."""
    return string(key) + struct.pack("<II", U32, value)


def tensor(name: str | bytes, dims: list[int], type: int = F32, offset: int = 0) -> bytes:
    """A tensor's description; `dims` are innermost first."""
    return string(name) + struct.pack(f"<I{len(dims)}QiQ", len(dims), *dims, type, offset)


def padded(raw: bytes, alignment: int = 32) -> bytes:
    """The bytes with zeros up to the alignment."""
    return raw + bytes(-len(raw) % alignment)


def one_tensor(description: bytes, n_data_bytes: int = 1 << 16) -> bytes:
    """A file without metadata that has this tensor and some data."""
    return padded(head(1, 0) + description) + bytes(n_data_bytes)
