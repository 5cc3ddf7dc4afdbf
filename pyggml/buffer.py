"""Buffers: device memory that holds named tensors for as long as the buffer lives.

Weights, caches and constants live here; what a graph computes lives in its allocator. A buffer larger
than the device allows in one piece is made of several. Closing frees the memory; a tensor of a closed
buffer raises ClosedError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._ffi import ffi, last_native_error, lib
from .backend import Backend
from .dtypes import DType, dtype
from .errors import AllocationError, ClosedError, ShapeError
from .tensor import Tensor, ggml_ne

Spec = tuple[Sequence[int], "str | DType"]


class Buffer:
    """Named tensors in one device's memory.

    `Buffer(backend, {"k": ((512, 64), "f16")})` allocates, not zeroed. `buffer_type` is one of
    `backend.buffer_types()`, by default the device's plain one.
    Raises AllocationError with the bytes asked for.
    """

    def __init__(
        self,
        backend: Backend,
        tensors: Mapping[str, Spec],
        *,
        buffer_type: Any = None,
        weights: bool = False,
    ) -> None:
        self.backend = backend
        self._buffers: list[Any] = []
        self._memory: np.ndarray | None = None
        self._ctx = _context(len(tensors))
        self._tensors = {name: self._declare(name, *spec) for name, spec in tensors.items()}
        self._type = backend.buffer_types()[-1] if buffer_type is None else buffer_type
        try:
            for piece in self._pieces():
                self._allocate(piece, weights)
        except AllocationError:
            self.close()
            raise

    @classmethod
    def from_memory(cls, backend: Backend, memory: np.ndarray, tensors: Mapping[str, tuple[Sequence[int], DType, int]]) -> Buffer:
        """Place tensors in host memory that exists, such as a mapped file, without a copy.

        `tensors` maps a name to shape, type and byte offset in `memory`, which is kept alive.
        Raises ShapeError when an offset is not aligned for the device or lies outside.
        """
        self = cls.__new__(cls)
        self.backend, self._memory, self._buffers = backend, memory, []
        self._type = backend.buffer_types()[-1]
        self._ctx = _context(len(tensors))
        alignment = int(lib.ggml_backend_buft_get_alignment(self._type))
        base = ffi.cast("char *", ffi.from_buffer(memory))
        if int(ffi.cast("uintptr_t", base)) % alignment:
            lib.ggml_free(self._ctx)
            self._ctx = None
            raise ShapeError(f"the memory does not begin at a multiple of {alignment} bytes")
        handle = lib.ggml_backend_cpu_buffer_from_ptr(base, memory.nbytes)
        lib.ggml_backend_buffer_set_usage(handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self._buffers.append(handle)
        self._tensors = {}
        for name, (shape, kind, offset) in tensors.items():
            tensor = self._declare(name, shape, kind)
            address = base + offset
            if int(ffi.cast("uintptr_t", address)) % alignment or offset + tensor.n_bytes > memory.nbytes:
                self.close()
                raise ShapeError(f"{name}: offset {offset} is not a multiple of {alignment} or outside of {memory.nbytes} bytes")
            lib.ggml_backend_tensor_alloc(handle, tensor.handle, address)
            self._tensors[name] = tensor
        return self

    def _declare(self, name: str, shape: Sequence[int], kind: str | DType) -> Tensor:
        ne = ggml_ne(shape)
        kind = dtype(kind)
        if ne[0] % kind.block_size:
            raise ShapeError(f"{name}: rows of {ne[0]} do not fit {kind.name}, whose blocks hold {kind.block_size}")
        handle = lib.ggml_new_tensor(self._ctx, kind.id, 4, ffi.new("int64_t[4]", ne))
        lib.ggml_set_name(handle, name.encode()[:63])
        return Tensor(handle, len(shape), self, None)

    def _pieces(self) -> Iterator[list[tuple[Tensor, int]]]:
        """Lists of (tensor, offset) that fit one allocation of the device each."""
        alignment = int(lib.ggml_backend_buft_get_alignment(self._type))
        limit = int(lib.ggml_backend_buft_get_max_size(self._type))
        piece: list[tuple[Tensor, int]] = []
        end = 0
        for tensor in self._tensors.values():
            size = int(lib.ggml_backend_buft_get_alloc_size(self._type, tensor.handle))
            size = -(-size // alignment) * alignment
            if piece and end + size > limit:
                yield piece
                piece, end = [], 0
            piece.append((tensor, end))
            end += size
        if piece:
            yield piece

    def _allocate(self, piece: list[tuple[Tensor, int]], weights: bool) -> None:
        last, offset = piece[-1]
        size = offset + int(lib.ggml_backend_buft_get_alloc_size(self._type, last.handle))
        handle = lib.ggml_backend_buft_alloc_buffer(self._type, size)
        if handle == ffi.NULL:
            reason = last_native_error()
            raise AllocationError(
                f"{self.backend.device.name}: no {size} bytes; {self.backend.device.memory_free} are free"
                + (f" ({reason})" if reason else "")
            )
        self._buffers.append(handle)
        if weights:
            lib.ggml_backend_buffer_set_usage(handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(handle))
        for tensor, start in piece:
            if lib.ggml_backend_tensor_alloc(handle, tensor.handle, base + start) != lib.GGML_STATUS_SUCCESS:
                raise AllocationError(f"{tensor.name}: the device refused to place it")

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device (0 for mapped memory)."""
        if self._memory is not None:
            return 0
        return sum(int(lib.ggml_backend_buffer_get_size(b)) for b in self._buffers)

    def clear(self) -> None:
        """Set every byte to zero."""
        for handle in self._buffers:
            lib.ggml_backend_buffer_clear(handle, 0)

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._ctx is None

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        if self._ctx is None:
            return
        for handle in self._buffers:
            lib.ggml_backend_buffer_free(handle)
        lib.ggml_free(self._ctx)
        self._buffers, self._ctx, self._memory = [], None, None

    def __getitem__(self, name: str) -> Tensor:
        if self.closed:
            raise ClosedError(f"the buffer that held {name!r} is closed")
        return self._tensors[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __enter__(self) -> Buffer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _context(n_tensors: int) -> Any:
    params = ffi.new("struct ggml_init_params *")
    params.mem_size = (n_tensors + 1) * lib.ggml_tensor_overhead()
    params.no_alloc = True
    return lib.ggml_init(params[0])
