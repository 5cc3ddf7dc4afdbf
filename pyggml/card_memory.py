"""Addresses and memory of NVIDIA cards without opening them.

Whoever asks CUDA itself how much memory of a card is free takes some hundred megabytes of it, on every card that is
looked at. The driver's management library (NVML) tells it for nothing.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from ._ffi import ffi
from .cuda_module import cuda_api, why
from .errors import BuildError

SONAME = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def card_facts(index: int) -> tuple[str, int] | None:
    """PCI address and bytes of CUDA's card of this number; None where only ggml can tell, as of emulated cards."""
    if os.environ.get("GGML_CUDA_DEVICES"):
        return None
    try:
        api = cuda_api()
    except BuildError:  # whoever needs the module is told so
        return None
    bus_id, n_bytes, reason = ffi.new("char[32]"), ffi.new("size_t *"), why()
    if api is None or not api.card_facts(index, bus_id, len(bus_id), n_bytes, reason, len(reason)):
        return None
    return ffi.string(bus_id).decode().lower(), int(n_bytes[0])


def free_bytes(bus_id: str) -> int | None:
    """Bytes that are free on the card at this address, None where the driver does not say."""
    nvml, card, memory = _nvml(), ctypes.c_void_p(), _Memory()
    if nvml is None or nvml.nvmlDeviceGetHandleByPciBusId_v2(bus_id.encode(), ctypes.byref(card)):
        return None
    if nvml.nvmlDeviceGetMemoryInfo(card, ctypes.byref(memory)):
        return None
    return int(memory.free)


@functools.cache
def _nvml() -> Any | None:
    """The library, ready for use."""
    try:
        library = ctypes.CDLL(SONAME)
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
