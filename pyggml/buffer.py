"""Buffers: device memory that holds named tensors for as long as the buffer lives.

Weights, caches and constants live here; what a graph computes lives in its allocator. A buffer larger than the device
allows in one piece is made of several. Closing frees the memory; a tensor of a closed buffer raises ClosedError, and a
graph that uses one refuses to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ._ffi import ffi, last_native_error, lib
from .backend import Backend
from .dtypes import DType, dtype
from .errors import AllocationError, ClosedError, DeviceError, ShapeError
from .lifetime import Closable
from .tensor import WORD_BYTES, Tensor, check_storable, ggml_ne

Spec = tuple[Sequence[int], "str | DType"]


class Buffer(Closable):
    """Named tensors in one device's memory.

    `Buffer(backend, {"k": ((512, 64), "f16")})` allocates, not zeroed. `buffer_type` is one of
    `backend.buffer_types()`, by default the device's plain one; in another one tensors can be set whole and multiplied
    by, nothing else.
    Raises AllocationError with the bytes asked for, DeviceError when the buffer type does not take a tensor.
    """

    def __init__(
        self,
        backend: Backend,
        tensors: Mapping[str, Spec],
        *,
        buffer_type: Any = None,
        weights: bool = False,
    ) -> None:
        plain = backend.buffer_types()[-1]
        self._begin(backend, len(tensors), plain if buffer_type is None else buffer_type)
        self.is_plain = bool(self._type == plain)
        self._memory: np.ndarray | None = None
        try:
            for name, (shape, kind) in tensors.items():
                self._declare(name, shape, kind)
            for piece in self._pieces():
                self._allocate(piece, weights)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_memory(
        cls, backend: Backend, memory: np.ndarray, tensors: Mapping[str, tuple[Sequence[int], DType, int]]
    ) -> Buffer:
        """Place weights in host memory that exists, such as a mapped file, without a copy.

        `tensors` maps a name to shape, type and byte offset in `memory`, which is kept alive and never written.
        Raises ShapeError when an offset is not aligned for the device or lies outside, DeviceError for a device that
        does not compute in host memory.
        """
        if backend.device.kind != "cpu":
            raise DeviceError(
                f"{backend.device.name} does not compute in host memory; make a Buffer and set its tensors"
            )
        if not memory.flags.c_contiguous:
            raise ShapeError("the memory is not contiguous")
        self = cls.__new__(cls)
        self._begin(backend, len(tensors), backend.buffer_types()[-1])
        self.is_plain, self._memory = True, memory
        try:
            self._place(memory, tensors)
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self, backend: Backend, n_tensors: int, buffer_type: Any) -> None:
        self.backend = backend
        self._type = buffer_type
        self._buffers: list[Any] = []
        self._tensors: dict[str, tuple[Any, int]] = {}
        params = ffi.new("struct ggml_init_params *")
        params.mem_size = (n_tensors + 1) * lib.ggml_tensor_overhead()
        params.no_alloc = True
        self._ctx = lib.ggml_init(params[0])
        self._open(backend.lock)

    def _declare(self, name: str, shape: Sequence[int], kind: str | DType) -> Tensor:
        kind = dtype(kind)
        ne = ggml_ne(shape)
        check_storable(name, shape, kind)
        if not self.is_plain and not self._is_multiplied_by(shape, kind):
            raise DeviceError(f"{name}: this buffer type does not take {kind.name} of shape {tuple(shape)}")
        handle = lib.ggml_new_tensor(self._ctx, kind.id, 4, ffi.new("int64_t[4]", ne))
        lib.ggml_set_name(handle, name.encode()[:63])
        self._tensors[name] = handle, len(shape)
        return self[name]

    def _is_multiplied_by(self, shape: Sequence[int], kind: DType) -> bool:
        return any(
            self.backend.first_that_multiplies([self._type], shape, kind, experts=experts) == 0
            for experts in (False, True)
        )

    def _place(self, memory: np.ndarray, tensors: Mapping[str, tuple[Sequence[int], DType, int]]) -> None:
        alignment = int(lib.ggml_backend_buft_get_alignment(self._type))
        base = ffi.cast("char *", ffi.from_buffer(memory))
        if int(ffi.cast("uintptr_t", base)) % alignment:
            raise ShapeError(f"the memory does not begin at a multiple of {alignment} bytes")
        handle = lib.ggml_backend_cpu_buffer_from_ptr(base, memory.nbytes)
        self._buffers.append(handle)
        lib.ggml_backend_buffer_set_usage(handle, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        for name, (shape, kind, offset) in tensors.items():
            tensor = self._declare(name, shape, kind)
            if offset < 0 or offset % alignment or offset + tensor.n_bytes > memory.nbytes:
                raise ShapeError(
                    f"{name}: {tensor.n_bytes} bytes at {offset} must begin at a multiple of {alignment} "
                    f"and lie within {memory.nbytes} bytes"
                )
            lib.ggml_backend_tensor_alloc(handle, tensor.handle, base + offset)

    def _pieces(self) -> Iterator[list[tuple[Any, int]]]:
        """Lists of (tensor, offset) that fit one allocation of the device each."""
        alignment = int(lib.ggml_backend_buft_get_alignment(self._type))
        limit = int(lib.ggml_backend_buft_get_max_size(self._type))
        piece: list[tuple[Any, int]] = []
        end = 0
        for tensor, _ in self._tensors.values():
            size = int(lib.ggml_backend_buft_get_alloc_size(self._type, tensor))
            size = -(-size // alignment) * alignment
            if piece and end + size > limit:
                yield piece
                piece, end = [], 0
            piece.append((tensor, end))
            end += size
        if piece:
            yield piece

    def _allocate(self, piece: list[tuple[Any, int]], weights: bool) -> None:
        last, offset = piece[-1]
        size = offset + int(lib.ggml_backend_buft_get_alloc_size(self._type, last))
        size += -size % WORD_BYTES
        last_native_error()
        with self.lock:
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
            if lib.ggml_backend_tensor_alloc(handle, tensor, base + start) != lib.GGML_STATUS_SUCCESS:
                raise AllocationError(f"{ffi.string(tensor.name).decode()}: the device refused to place it")

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device (0 for mapped memory)."""
        self.check_open()
        if self._memory is not None:
            return 0
        return sum(int(lib.ggml_backend_buffer_get_size(b)) for b in self._buffers)

    @property
    def is_read_only(self) -> bool:
        """Whether the memory is borrowed and must not be written."""
        return self._memory is not None

    @property
    def buffer_type(self) -> Any:
        """The C buffer type that the tensors lie in."""
        return self._type

    def clear(self) -> None:
        """Set every byte to zero."""
        self.check_open()
        if self.is_read_only:
            raise ShapeError("this buffer lies in memory that is only read")
        with self.lock:
            for handle in self._buffers:
                lib.ggml_backend_buffer_clear(handle, 0)

    def copy_rows(self, names: Iterable[str], *, start: int, to: int, n_rows: int) -> None:
        """Copy n_rows rows of each of these matrices from row `start` to row `to`, on the device.

        Raises ShapeError for rows that are not there or overlap, AllocationError without memory for the call.
        """
        tables = [self[name] for name in names]
        if not tables or not n_rows:
            return
        for table in tables:
            self.check_transfer(table, write=True)
            last = max(start, to) + n_rows
            if table.ndim != 2 or min(start, to, n_rows) < 0 or last > table.shape[0]:
                raise ShapeError(f"{table!r} has no {n_rows} rows from {start} and from {to} on")
        if abs(start - to) < n_rows or not self.is_plain:
            raise ShapeError(f"{n_rows} rows from {start} on cannot be copied to {to} within this buffer")
        handles = ffi.new("struct ggml_tensor *[]", [table.handle for table in tables])
        with self.lock:
            self.backend.synchronize()
            is_done = lib.pg_rows_copy(handles, len(tables), start, to, n_rows)
        if not is_done:
            raise AllocationError("no host memory for copying rows")

    def check_transfer(self, tensor: Tensor, *, write: bool) -> None:
        """Raise unless a tensor's memory can be read or written from the host."""
        self.check_open()
        if write and self.is_read_only:
            raise ShapeError(f"{tensor!r} lies in memory that is only read")
        if not write and not self.is_plain:
            raise ShapeError(f"{tensor!r} lies in a layout for matrix products and cannot be read back")

    def _release(self) -> None:
        for handle in self._buffers:
            lib.ggml_backend_buffer_free(handle)
        lib.ggml_free(self._ctx)
        self._buffers, self._ctx, self._memory = [], None, None

    def __getitem__(self, name: str) -> Tensor:
        if self.closed:
            raise ClosedError(f"the buffer that held {name!r} is closed")
        handle, ndim = self._tensors[name]
        return Tensor(handle, ndim, self, None)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
