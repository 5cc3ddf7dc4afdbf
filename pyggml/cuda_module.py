"""Our CUDA module: transports between cards, loaded when first asked for and absent where CUDA was not built.

Its functions come as one table; they run without the GIL. `why()` makes the buffer that each of them takes for the
reason of a failure.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import Any

from ._ffi import ffi, lib
from .device import LIBRARY_DIR
from .errors import BuildError, DeviceError
from .switches import is_on

MODULE = LIBRARY_DIR / "libpyggml-cuda.so"
WHY_BYTES = 400
# As in native/fuse_parts.h.
KERNELS = ("products", "columns", "types", "experts", "experts-columns", "router", "attention", "attention-ranks")


@functools.cache
def cuda_api() -> Any | None:
    """The module's table of functions, None where it was not built.

    Raises BuildError when it is there and cannot be loaded.
    """
    if not MODULE.exists():
        return None
    try:
        library = ctypes.CDLL(str(MODULE), mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        raise BuildError(f"the CUDA transports cannot be loaded: {error}") from error
    library.pgc_open.restype = ctypes.c_void_p
    api = ffi.cast("pgc_api *", library.pgc_open())
    if api.abi != lib.PGC_ABI:
        raise BuildError(f"{MODULE.name} is of another build; make both with: python build_ggml.py --install")
    return api


def are_graphs_on() -> bool:
    """Whether launches may be recorded and replayed: PYGGML_CUDA_GRAPHS is not off.

    Raises DeviceError where it is no word for on or off.
    """
    return is_on("PYGGML_CUDA_GRAPHS")


def are_kernels_on() -> bool:
    """Whether our own kernels may take the place of several of ggml's: PYGGML_FUSED is not 0.

    Raises DeviceError for a word that fuse_parts.h does not know.
    """
    setting = os.environ.get("PYGGML_FUSED") or "1"
    if unknown := set(setting.split(",")) - {*KERNELS, "0", "1", "all"}:
        known = ", ".join(KERNELS)
        raise DeviceError(f"PYGGML_FUSED={setting}: no kernels are called {min(unknown)!r}; 0, 1, all, or of {known}")
    return setting != "0"


def why() -> Any:
    """A buffer for a reason."""
    return ffi.new("char[]", WHY_BYTES)


def words(buffer: Any) -> str:
    """The reason in a buffer."""
    return str(ffi.string(buffer).decode("utf-8", "replace")) or "no reason given"
