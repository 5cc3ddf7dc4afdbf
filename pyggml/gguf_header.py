"""The header of a GGUF file as bytes: typed values in, bytes out.

ggml's own writer is not used: it pads to 32 whatever `general.alignment` says, cuts strings at zero bytes
and drops outer dimensions of 1. Source of the layout: docs/gguf.md of ggml, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .dtypes import DType, nbytes
from .gguf_metadata import NUMPY_TYPES, VALUE_TYPES

ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
TypedValue = tuple[str, Any]
TensorInfo = tuple[str, Sequence[int], DType]


def infer_type(value: Any) -> str:
    """The value type that llama.cpp expects for a Python or numpy value.

    Integers become u32 where they fit and lists of them i32[]. Raises ValueError if nothing fits.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        for name, numpy in NUMPY_TYPES.items():
            if value.dtype == numpy:
                return name + "[]" * (value.ndim > 0)
    if isinstance(value, (list, tuple)) and value:
        return _infer_list(value)
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return _first_fit(value, value, ("u32", "i32", "u64", "i64"))
    if isinstance(value, (float, str)):
        return "f32" if isinstance(value, float) else "str"
    raise ValueError(
        f"{type(value).__name__} {value!r:.60} has no obvious GGUF type; name one, such as 'i32[]'"
    )


def _infer_list(values: Sequence[Any]) -> str:
    kinds = {type(v) for v in values}
    if kinds == {int}:
        return _first_fit(min(values), max(values), ("i32", "i64", "u64")) + "[]"
    for allowed, name in (({str}, "str[]"), ({bool}, "bool[]"), ({int, float}, "f32[]")):
        if kinds <= allowed:
            return name
    raise ValueError(f"a list of {', '.join(sorted(k.__name__ for k in kinds))} has no GGUF type")


def _first_fit(low: int, high: int, types: Iterable[str]) -> str:
    for name in types:
        bounds = np.iinfo(NUMPY_TYPES[name])
        if bounds.min <= low and high <= bounds.max:
            return name
    raise ValueError(f"{high if high > 0 else low} takes more than 64 bits")


def typed(value: Any, kind: str) -> TypedValue:
    """Bring a value into the form that `header` writes.

    Raises ValueError when the type does not exist or cannot hold the value unchanged.
    """
    base, is_array = kind.removesuffix("[]"), kind.endswith("[]")
    if base == "str":
        strings = value if is_array else [value]
        if not isinstance(strings, (list, tuple)) or not all(isinstance(s, str) for s in strings):
            raise ValueError(f"{value!r:.60} is not {kind}")
        return kind, list(value) if is_array else value
    if base not in NUMPY_TYPES:
        raise ValueError(
            f"no value type {kind!r}; there are str, {', '.join(NUMPY_TYPES)}, and with [] arrays of them"
        )
    # Python's own numbers stay objects, or numpy would round large integers by way of float64.
    source = np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else np.array(value, object)
    if source.ndim != int(is_array) or not all(isinstance(v, (int, float)) for v in source.ravel().tolist()):
        raise ValueError(f"{value!r:.60} is not {kind}")
    try:
        with np.errstate(all="ignore"):
            stored = source.astype(NUMPY_TYPES[base])
    except OverflowError as error:
        raise ValueError(f"{value!r:.60} does not fit {kind}") from error
    if base not in ("f32", "f64") and not np.array_equal(stored, source):
        raise ValueError(f"{value!r:.60} does not fit {kind}")
    return kind, stored


def header(values: Mapping[str, TypedValue], tensors: Sequence[TensorInfo], alignment: int) -> bytes:
    """Everything before the tensor data, padded; the tensors follow each other from there, padded too."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))]
    for key, (kind, value) in values.items():
        parts += [_string(key), _value(kind, value)]
    offset = 0
    for name, shape, dtype in tensors:
        layout = f"<I{len(shape)}QiQ"
        parts += [_string(name), struct.pack(layout, len(shape), *reversed(shape), dtype.id, offset)]
        offset += nbytes(shape, dtype)
        offset += -offset % alignment
    size = sum(map(len, parts))
    return b"".join([*parts, bytes(-size % alignment)])


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(kind: str, value: Any) -> bytes:
    base, is_array = kind.removesuffix("[]"), kind.endswith("[]")
    id = VALUE_TYPES.index(base)
    head = struct.pack("<I", id)
    if is_array:
        head = struct.pack("<IIQ", VALUE_TYPES.index("arr"), id, len(value))
    if base != "str":
        return head + bytes(value.tobytes())
    return head + b"".join(map(_string, value if is_array else [value]))
