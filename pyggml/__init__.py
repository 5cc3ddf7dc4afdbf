"""ggml graphs from Python: devices, buffers, tensors, graphs and GGUF files."""

from __future__ import annotations

import importlib
import typing

from .allocator import Allocator
from .attention import flash_attn, rope, soft_max
from .backend import Backend, default_threads
from .buffer import Buffer
from .candidates import (
    CHOSEN,
    HAS_INF,
    HAS_NAN,
    NONE_LEFT,
    Candidates,
    chosen_candidates,
    mask_disallowed,
    merged_candidates,
    top_candidates,
)
from .cuda_module import are_graphs_on
from .device import Device, ModuleProblem, default_device, device, devices, discrete_gpus, module_problems
from .dtypes import DType, dequantize, dtype, quantize
from .errors import (
    AllocationError,
    BuildError,
    ClosedError,
    ComputeError,
    DeviceError,
    GgmlError,
    GGUFError,
    PyggmlError,
    ShapeError,
)
from .gguf import GGUF
from .gguf_tensor import GGUFTensor
from .gguf_writer import GGUFWriter
from .graph import Graph
from .group import Group, GroupGraph, RankGraph
from .ops import (
    add,
    argmax,
    clamp,
    div,
    exp,
    geglu,
    gelu,
    log,
    mul,
    neg,
    norm,
    relu,
    rms_norm,
    scale,
    sigmoid,
    silu,
    sqr,
    sqrt,
    sub,
    sum_rows,
    swiglu,
    swiglu_oai,
    tanh,
    top_k,
)
from .products import add_id, hadamard, mul_mat, mul_mat_id
from .profile import KernelTrace, Work
from .reduce_type import MIN_NARROW_ELEMENTS, reduce_dtype_for
from .relay import Relay
from .rows import get_rows, set_rows
from .shapes import cast, concat, cont, copy, permute, repeat, reshape, view
from .tensor import Tensor
from .turns import Turns

__all__ = [
    "CHOSEN",
    "GGUF",
    "HAS_INF",
    "HAS_NAN",
    "MIN_NARROW_ELEMENTS",
    "NONE_LEFT",
    "AllocationError",
    "Allocator",
    "Backend",
    "Buffer",
    "BuildError",
    "Candidates",
    "ClosedError",
    "ComputeError",
    "DType",
    "Device",
    "DeviceError",
    "GGUFError",
    "GGUFTensor",
    "GGUFWriter",
    "GgmlError",
    "Graph",
    "Group",
    "GroupGraph",
    "KernelTrace",
    "ModuleProblem",
    "PyggmlError",
    "RankGraph",
    "Relay",
    "ShapeError",
    "Tensor",
    "Turns",
    "Work",
    "add",
    "add_id",
    "are_graphs_on",
    "argmax",
    "cast",
    "chosen_candidates",
    "clamp",
    "concat",
    "cont",
    "copy",
    "default_device",
    "default_threads",
    "dequantize",
    "device",
    "devices",
    "discrete_gpus",
    "div",
    "dtype",
    "exp",
    "flash_attn",
    "geglu",
    "gelu",
    "get_rows",
    "hadamard",
    "log",
    "mask_disallowed",
    "merged_candidates",
    "module_problems",
    "mul",
    "mul_mat",
    "mul_mat_id",
    "neg",
    "norm",
    "permute",
    "quantize",
    "reduce_dtype_for",
    "relu",
    "repeat",
    "reshape",
    "rms_norm",
    "rope",
    "scale",
    "set_rows",
    "sigmoid",
    "silu",
    "soft_max",
    "sqr",
    "sqrt",
    "sub",
    "sum_rows",
    "swiglu",
    "swiglu_oai",
    "tanh",
    "top_candidates",
    "top_k",
    "view",
]

if not typing.TYPE_CHECKING:  # checkers would take every name for one that is there

    def __getattr__(name: str) -> object:
        """pyggml.engine and pyggml.server, imported when first named: this package knows nothing of them."""
        if name not in ("engine", "server"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"{__name__}.{name} is not installed") from error
