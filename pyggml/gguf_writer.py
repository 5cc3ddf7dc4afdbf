"""Writing GGUF files, whole or split, from arrays, raw bytes or tensors of other files.

Tensor data is produced one tensor at a time while it is written, so memory holds about one tensor.
Files appear under their names only when all are complete. One thread at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from .dtypes import DType, dtype, nbytes, quantize
from .errors import GGUFError, ShapeError
from .gguf import SPLIT_COUNT, SPLIT_NO, SPLIT_TENSORS, shard_path
from .gguf_header import ALIGNMENT_KEY, DEFAULT_ALIGNMENT, TypedValue, header, infer_type, typed
from .gguf_tensor import GGUFTensor

TensorSource: TypeAlias = np.ndarray | GGUFTensor | Callable[[], np.ndarray]
_MAX_NAME_BYTES = 63
_MAX_KEY_BYTES = 65535
_MAX_SHARDS = 65535


@dataclass(frozen=True)
class _Entry:
    name: str
    shape: tuple[int, ...]
    type: DType
    source: TensorSource
    imatrix: ArrayLike | None

    @property
    def n_bytes(self) -> int:
        return nbytes(self.shape, self.type)


class GGUFWriter:
    """A GGUF file in the making: set metadata, add tensors, then `write`.

    Leaving a `with` block writes, unless an exception is under way. `types` fixes value types by key
    ("u16", "i32[]"); another file's metadata and `metadata.types` will do, of which split.* is left out.
    `max_shard_bytes` splits the tensor data over files named STEM-00001-of-0000N.gguf. `n_threads` is for
    quantising.
    Raises GGUFError naming the key or tensor that cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        metadata: Mapping[str, Any] | None = None,
        types: Mapping[str, str] | None = None,
        *,
        max_shard_bytes: int | None = None,
        n_threads: int = 1,
    ) -> None:
        self.path = os.fspath(path)
        self._max_shard_bytes = max_shard_bytes
        self._n_threads = n_threads
        self._values: dict[str, TypedValue] = {}
        self._entries: dict[str, _Entry] = {}
        for key, value in (metadata or {}).items():
            if not key.startswith("split."):
                self.set(key, value, (types or {}).get(key))

    def set(self, key: str, value: Any, kind: str | None = None) -> None:
        """Add or replace a metadata value.

        Without a kind integers become u32 where they fit, lists of integers i32[], floats f32, and numpy
        values keep their type.
        """
        if not 0 < len(key) <= _MAX_KEY_BYTES or not all(" " <= c <= "~" for c in key):
            raise GGUFError(self.path, key, f"keys are 1 to {_MAX_KEY_BYTES} printable ASCII characters")
        try:
            kind, stored = typed(value, kind or infer_type(value))
        except ValueError as error:
            raise GGUFError(self.path, key, str(error)) from error
        if key == ALIGNMENT_KEY and (kind != "u32" or stored < 8 or stored & (stored - 1)):
            raise GGUFError(
                self.path, key, f"is {value!r} as {kind}; it has to be a u32, a power of two from 8 on"
            )
        self._values[key] = kind, stored

    def add_tensor(
        self,
        name: str,
        source: TensorSource,
        kind: str | DType | None = None,
        *,
        shape: Sequence[int] | None = None,
        imatrix: ArrayLike | None = None,
    ) -> None:
        """Add a tensor whose data is taken from `source` when the file is written.

        `source` is an array, converted to `kind`; a tensor of another file, copied as it is if its type
        stays; or a function that returns an array, with `kind` and `shape` given. An array of uint8 is
        taken as the raw bytes of that type and shape.
        """
        if isinstance(source, GGUFTensor):
            shape, kind = source.shape, kind or source.type
        elif isinstance(source, np.ndarray) and source.dtype != np.uint8:
            shape, kind = source.shape, kind or dtype(source.dtype)
        if shape is None or kind is None:
            raise GGUFError(self.path, name, "raw bytes and functions need a type and a shape")
        n_bytes = len(name.encode("utf-8", "surrogateescape"))
        if not 0 < n_bytes <= _MAX_NAME_BYTES or "\0" in name:
            raise GGUFError(
                self.path, name, f"names are 1 to {_MAX_NAME_BYTES} bytes without zeros, not {n_bytes}"
            )
        if name in self._entries:
            raise GGUFError(self.path, name, "a tensor of this name was added already")
        entry = _Entry(name, tuple(int(n) for n in shape), dtype(kind), source, imatrix)
        try:
            if len(entry.shape) > 4 or min(entry.shape, default=0) < 0 or entry.n_bytes >= 2**63:
                raise ShapeError(
                    f"shape {entry.shape}: a file takes at most 4 dimensions, from 0 on, and 2^63 bytes"
                )
        except ShapeError as error:
            raise GGUFError(self.path, name, str(error)) from error
        self._entries[name] = entry

    def write(self) -> list[str]:
        """Write the file or files and return their paths."""
        shards = self._shards()
        paths = [self.path]
        if self._max_shard_bytes is not None:
            stem = self.path.removesuffix(".gguf")
            paths = [shard_path(stem, i, len(shards)) for i in range(len(shards))]
        parts = [f"{path}.{os.getpid()}.part" for path in paths]
        try:
            for i, entries in enumerate(shards):
                self._write_file(parts[i], self._shard_values(i, len(shards)), entries)
            for part, path in zip(parts, paths):
                os.replace(part, path)
        except OSError as error:
            raise GGUFError(self.path, "file", error.strerror or str(error)) from error
        finally:
            for part in parts:
                if os.path.exists(part):
                    os.unlink(part)
        return paths

    def __enter__(self) -> GGUFWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.write()

    def _shards(self) -> list[list[_Entry]]:
        shards: list[list[_Entry]] = [[]]
        size = 0
        for entry in self._entries.values():
            if (
                self._max_shard_bytes is not None
                and shards[-1]
                and size + entry.n_bytes > self._max_shard_bytes
            ):
                shards.append([])
                size = 0
            shards[-1].append(entry)
            size += entry.n_bytes
        if len(shards) > _MAX_SHARDS:
            raise GGUFError(
                self.path, SPLIT_COUNT, f"{len(shards)} files; at most {_MAX_SHARDS} are possible"
            )
        return shards

    def _shard_values(self, number: int, count: int) -> dict[str, TypedValue]:
        """The first file has all metadata; general.* is in each, to tell files of different models apart."""
        if self._max_shard_bytes is None:
            return self._values
        values = {k: v for k, v in self._values.items() if number == 0 or k.startswith("general.")}
        values[SPLIT_NO] = typed(number, "u16")
        values[SPLIT_COUNT] = typed(count, "u16")
        values[SPLIT_TENSORS] = typed(len(self._entries), "i32")
        return values

    def _write_file(self, path: str, values: Mapping[str, TypedValue], entries: list[_Entry]) -> None:
        alignment = int(values[ALIGNMENT_KEY][1]) if ALIGNMENT_KEY in values else DEFAULT_ALIGNMENT
        with open(path, "wb") as file:
            file.write(header(values, [(e.name, e.shape, e.type) for e in entries], alignment))
            for entry in entries:
                file.write(self._data(entry).data)
                file.write(bytes(-entry.n_bytes % alignment))

    def _data(self, entry: _Entry) -> np.ndarray:
        source = entry.source
        if isinstance(source, GGUFTensor):
            source = source.data if source.type == entry.type else source.numpy()
        array = source() if callable(source) else source
        if array.dtype == np.uint8:
            if array.nbytes != entry.n_bytes:
                wanted = f"{entry.n_bytes} for shape {entry.shape} of {entry.type}"
                raise GGUFError(self.path, entry.name, f"{array.nbytes} raw bytes, not {wanted}")
            return np.ascontiguousarray(array).reshape(-1)
        if array.shape != entry.shape:
            raise GGUFError(self.path, entry.name, f"an array of shape {array.shape}, not {entry.shape}")
        try:
            return quantize(array, entry.type, entry.imatrix, self._n_threads)
        except ShapeError as error:
            raise GGUFError(self.path, entry.name, str(error)) from error
