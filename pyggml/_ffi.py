"""The compiled binding: `ffi` and `lib` of the cffi extension, made by build_ggml.py."""

from __future__ import annotations

from typing import Any

from .errors import BuildError

try:
    from . import _ggml  # type: ignore[attr-defined]
except ImportError as error:
    raise BuildError(
        f"pyggml's native library cannot be loaded ({error}); build it with: python build_ggml.py --install"
    ) from error

ffi: Any = _ggml.ffi
lib: Any = _ggml.lib


def last_native_error() -> str:
    """Return and clear the last error line that ggml logged, or an empty string."""
    text = ffi.new("char[1024]")
    lib.pg_log_last_error(text, 1024)
    return str(ffi.string(text).decode("utf-8", "replace"))
