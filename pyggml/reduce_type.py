"""How the numbers of a sum over ranks travel: all as float32, or those of large sums as 16 bits.

Small sums stay float32: they take as long in either type, since links take their time to answer and not their time to
carry. From 1 MiB on the bytes decide, which is a prefill's chunk. ggml's own rule for
NCCL narrows from there too where ranks are four and more, and earlier with fewer.
A narrow sum is rounded once on its way in, added up in float32 in rank order, and rounded once more; NCCL alone adds in
16 bits and rounds after each addition. All ranks hold the same bits in every case. bf16 has float32's range and 8 bits
of precision; f16 has 11 bits and ends at 65504.
"""

from __future__ import annotations

from .backend import Backend
from .errors import DeviceError
from .graph import Graph
from .shapes import cast

REDUCE_DTYPES = ("f32", "bf16", "f16")
MIN_NARROW_ELEMENTS = 2**18


def reduce_dtype_for(n_elements: int, asked: str) -> str:
    """The type in which a sum of so many elements travels where `asked` is allowed."""
    return asked if n_elements >= MIN_NARROW_ELEMENTS else "f32"


def check_reduce_dtype(name: str, backends: list[Backend]) -> str:
    """The name, if it is a type that every device can make of float32 and take back.

    Raises DeviceError with the types that would work.
    """
    if name not in REDUCE_DTYPES:
        raise DeviceError(f"reduce dtype {name!r}; {', '.join(REDUCE_DTYPES)} are supported")
    for backend in backends:
        if not _can_cast(backend, name):
            others = [other for other in REDUCE_DTYPES if all(_can_cast(b, other) for b in backends)]
            raise DeviceError(
                f"reduce dtype {name}: {backend.device.name} cannot cast to it and back; "
                f"would work: {', '.join(others)}"
            )
    return name


def _can_cast(backend: Backend, name: str) -> bool:
    if name == "f32":
        return True
    with Graph(backend, max_nodes=8) as g:
        narrow = cast(g.input("x", (1, 8)), name)
        return backend.supports(narrow) and backend.supports(cast(narrow, "f32"))
