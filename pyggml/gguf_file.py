"""One GGUF file mapped into memory, checked as a whole before anything of it is used.

The check and the index of keys and tensors come from one walk in C (native/gguf_guard.c). ggml's own
reader is not called: it parses the header a second time, cuts strings at zero bytes and aborts the
process where types do not match. Knows nothing of shards. Safe to read from several threads.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import Any

import numpy as np

from ._ffi import ffi, lib
from .dtypes import dtype
from .errors import ClosedError, GGUFError
from .gguf_metadata import VALUE_TYPES, GGUFMetadata, Pair
from .gguf_tensor import GGUFTensor


class GGUFFile:
    """A mapped file with its metadata and its tensors in file order.

    Raises GGUFError naming path and field for whatever is wrong with it.
    """

    def __init__(self, path: str | os.PathLike[str], file_index: int = 0) -> None:
        self.path = os.fspath(path)
        self._map = _map(self.path)
        self._memory: np.ndarray | None = np.frombuffer(self._map, np.uint8)
        index = ffi.new("pg_gguf_index *")
        try:
            if not lib.pg_gguf_check(ffi.from_buffer(self._map), len(self._map), index):
                raise GGUFError(self.path, _text(index.field), _text(index.problem))
            self.version = int(index.version)
            self.alignment = int(index.alignment)
            self.metadata = GGUFMetadata(self._pairs(index), memoryview(self._map))
            self.tensors = self._tensors(index, file_index)
            self._refuse_second_file(int(index.data_end))
        finally:
            lib.pg_gguf_index_free(index)

    @property
    def memory(self) -> np.ndarray:
        """The whole file as read-only uint8 [n_bytes]; raises ClosedError after close."""
        if self._memory is None:
            raise ClosedError(f"{self.path} was closed")
        return self._memory

    def close(self) -> None:
        """Let go of the mapping; it lives on until the last array that views it is gone."""
        self._memory = None
        self.metadata.close()
        try:
            self._map.close()
        except BufferError:
            pass  # arrays that were handed out still view it, and the last one unmaps it

    def _name(self, at: int, length: int) -> str:
        return self._map[at : at + length].decode("utf-8", "surrogateescape")

    def _pairs(self, index: Any) -> dict[str, Pair]:
        pairs = {}
        for i in range(index.n_pairs):
            p = index.pairs[i]
            pair = Pair(p.value_at, p.value_bytes, p.n, VALUE_TYPES[p.type], p.is_array)
            pairs[self._name(p.key_at, p.key_length)] = pair
        return pairs

    def _tensors(self, index: Any, file_index: int) -> list[GGUFTensor]:
        tensors = []
        for i in range(index.n_tensors):
            t = index.tensors[i]
            name = self._name(t.name_at, t.name_length)
            ne = (t.ne[0], t.ne[1], t.ne[2], t.ne[3])
            tensor = GGUFTensor(name, ne, t.n_dims, dtype(t.type), t.data_at, t.n_bytes, file_index, self)
            tensors.append(tensor)
        return tensors

    def _refuse_second_file(self, data_end: int) -> None:
        """Refuse files that were joined by cat: all but the first would be lost without a word."""
        padded = -(-data_end // self.alignment) * self.alignment
        for at in (data_end, padded):
            if self._map[at : at + 4] == b"GGUF":
                wrong = f"a second GGUF file begins at byte {at}: files were joined by cat"
                raise GGUFError(self.path, "end of file", f"{wrong}; keep them apart and open the first one")


def _map(path: str) -> mmap.mmap:
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise GGUFError(path, "file", "this is a folder; name a .gguf file in it")
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(path, "file", "this is no regular file and cannot be mapped")
        if status.st_size == 0:
            raise GGUFError(path, "file", "the file is empty; get it again")
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(path, "file", error.strerror or str(error)) from error


def _text(chars: Any) -> str:
    return str(ffi.string(chars).decode())
