"""The compiled binding: `ffi` and `lib` of the cffi extension, made by build_ggml.py."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import BuildError

# About 20 us. libgomp's own 300,000 turns last longer than a time slice: on a processor that other programs use as
# well, threads that wait keep off the one they wait for. On one that nobody else uses, sleeping costs a tenth.
_SPIN_COUNT = "1000"


def is_busy(loadavg: str, n_processors: int, n_ours: int) -> bool:
    """Whether others want more than half of the processors, by what /proc/loadavg says of this moment.

    Or whether this process may use `n_ours` of them only: who else wants those is not known.
    """
    try:
        n_running = int(loadavg.split()[3].partition("/")[0])
    except (IndexError, ValueError):
        n_running = 1
    return n_ours < n_processors or n_running - 1 > n_processors // 2  # one is this thread


def _loadavg() -> str:
    try:
        return Path("/proc/loadavg").read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def _short_spins() -> Iterator[None]:
    """While OpenMP's library is loaded: how long its threads look before they sleep, unless the user has said it."""
    is_said = "OMP_WAIT_POLICY" in os.environ or "GOMP_SPINCOUNT" in os.environ
    if is_said or not is_busy(_loadavg(), os.cpu_count() or 1, len(os.sched_getaffinity(0))):
        yield
        return
    os.environ["GOMP_SPINCOUNT"] = _SPIN_COUNT
    try:
        yield
    finally:
        del os.environ["GOMP_SPINCOUNT"]


try:
    with _short_spins():
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
