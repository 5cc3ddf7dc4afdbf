"""Where a run's time goes: nodes timed one by one on any device, or CUDA kernels as CUPTI sees them.

Node times hold the launch and the wait of each node and no fusion of several into one, so their sum is more than a
run takes. Kernel times are the GPU's own and tell nothing of the gaps between kernels.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ._ffi import ffi, lib
from .cuda_module import why, words
from .errors import DeviceError

_MAX_KERNELS = 4096
_FOLDERS = ("nvidia/cu{0}/lib", "nvidia/cuda_cupti/lib")
_TOOLKITS = ("/usr/local/cuda-{0}/lib64", "/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64")


@dataclass(frozen=True)
class Work:
    """Work of one kind: an operation on tensors of some shapes, or a kernel with its grid. Times of all its runs."""

    name: str
    count: int
    seconds: float


def node_name(node: Any) -> str:
    """A C node as text: operation, type and shape of what it reads, shape of its result (numpy's order)."""
    words = [ffi.string(lib.ggml_op_desc(node)).decode()]
    source = node.src[0]
    if source != ffi.NULL:
        kind = ffi.string(lib.ggml_type_name(source.type)).decode()
        words += [kind, _shape(source), "->"] if _shape(source) != _shape(node) else [kind]
    return " ".join([*words, _shape(node)])


def _shape(tensor: Any) -> str:
    ne = [int(n) for n in tensor.ne]
    while len(ne) > 1 and ne[-1] == 1:
        ne.pop()
    return "x".join(map(str, reversed(ne)))


def grouped(names: Sequence[str], seconds: Sequence[float]) -> list[Work]:
    """Nodes of the same name together, the most expensive first; those without work left out."""
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for name, time in zip(names, seconds):
        if time > 0:
            counts[name] += 1
            times[name] += time
    return sorted((Work(n, counts[n], times[n]) for n in times), key=lambda w: -w.seconds)


class KernelTrace:
    """Collects the kernels that run on this process's CUDA cards until end().

        with KernelTrace() as trace:
            ...                    # what is to be recorded and replayed is made here
            trace.restart()
            graph.step()
            works = trace.end()

    One at a time. Raises DeviceError where CUPTI is absent or refuses.
    """

    def __init__(self) -> None:
        reason, tried = why(), list(_candidates())
        for path in tried:
            if lib.pg_trace_begin(path.encode(), reason, len(reason)):
                break
        else:
            last = words(reason) if tried else "no CUDA is in use in this process"
            raise DeviceError(
                f"CUPTI cannot trace kernels: {last}; install nvidia-cuda-cupti or set PYGGML_CUPTI"
            )

    def restart(self) -> None:
        """Forget what was collected so far."""
        lib.pg_trace_restart()

    def end(self) -> list[Work]:
        """Stop, and return the kernels of all cards by name and grid, the most expensive first."""
        kernels = ffi.new("pg_kernel[]", _MAX_KERNELS)
        n = min(lib.pg_trace_end(kernels, _MAX_KERNELS), _MAX_KERNELS)
        counts: dict[str, int] = defaultdict(int)
        times: dict[str, float] = defaultdict(float)
        for kernel in kernels[0:n] if n > 0 else ():
            name = kernel_name(ffi.string(kernel.name).decode("utf-8", "replace"), tuple(kernel.grid))
            counts[name] += kernel.count
            times[name] += kernel.ns / 1e9
        return sorted((Work(n, counts[n], times[n]) for n in times), key=lambda w: -w.seconds)

    def __enter__(self) -> KernelTrace:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()


def kernel_name(linker_name: str, grid: tuple[int, ...]) -> str:
    """A kernel as people write it, without its parameters, and its grid where it has one."""
    name = re.sub(r"^void ", "", _demangled(linker_name))
    depth = 0
    for at, letter in enumerate(
        name
    ):  # the parameters begin at the first bracket outside of template arguments
        if letter == "(" and depth == 0 and not name.startswith("(anonymous namespace)", at):
            name = name[:at]
            break
        depth += {"<": 1, ">": -1}.get(letter, 0)
    shape = "x".join(map(str, grid))
    return f"{name} [{shape}]" if any(grid) else name


@functools.cache
def _demangle() -> Any | None:
    try:
        function = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_void_p
    return function


def _demangled(name: str) -> str:
    function = _demangle()
    if function is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int(0)
    found = function(name.encode(), None, None, ctypes.byref(status))
    if not found:
        return name
    text = ctypes.string_at(found).decode("utf-8", "replace")
    free = ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    free(found)
    return text


def _candidates() -> Iterator[str]:
    """Paths of CUPTI, best first: PYGGML_CUPTI, else that of the CUDA which this process uses."""
    if named := os.environ.get("PYGGML_CUPTI"):
        yield named
        return
    maps = Path("/proc/self/maps")
    major = re.search(r"/libcudart\.so\.(\d+)", maps.read_text()) if maps.exists() else None
    if major is None:
        return
    name = f"libcupti.so.{major[1]}"
    places = [
        str(Path(site) / folder) for site in dict.fromkeys(p for p in sys.path if p) for folder in _FOLDERS
    ]
    for place in (*places, *_TOOLKITS):
        path = Path(place.format(major[1])) / name
        if path.exists():
            yield str(path)
    yield name
