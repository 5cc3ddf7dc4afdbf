"""The UUID of an NVIDIA card at a PCI address, as `nvidia-smi -L` shows it."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from ._ffi import ffi
from .cuda_module import cuda_api, why
from .errors import BuildError

CARDS = Path("/proc/driver/nvidia/gpus")


@functools.cache
def card_uuid(bus_id: str) -> str | None:
    """The UUID that the driver's files tell, else CUDA itself; None where neither does."""
    try:
        text = (CARDS / bus_id.lower() / "information").read_text()
    except OSError:
        return _by_cuda(bus_id)
    found = re.search(r"GPU-[0-9a-f-]{36}", text)
    return found[0] if found else _by_cuda(bus_id)


def _by_cuda(bus_id: str) -> str | None:
    try:
        api = cuda_api()
    except BuildError:  # whoever needs the module is told so
        return None
    digits, reason = ffi.new("char[33]"), why()
    if api is None or api.find_card(bus_id.encode(), digits, reason, len(reason)) < 0:
        return None
    text = ffi.string(digits).decode()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
