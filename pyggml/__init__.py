"""ggml graphs from Python: devices, buffers, tensors, graphs and GGUF files."""

from __future__ import annotations

from .backend import Backend, default_threads
from .buffer import Buffer
from .candidates import Candidates, top_candidates
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
from .graph import Allocator, Graph
from .group import Group, GroupGraph, RankGraph
from .ops import (
    add,
    argmax,
    cast,
    clamp,
    concat,
    cont,
    copy,
    div,
    exp,
    flash_attn,
    geglu,
    gelu,
    get_rows,
    hadamard,
    log,
    mul,
    mul_mat,
    mul_mat_id,
    neg,
    norm,
    permute,
    relu,
    repeat,
    reshape,
    rms_norm,
    rope,
    scale,
    set_rows,
    sigmoid,
    silu,
    soft_max,
    sqr,
    sqrt,
    sub,
    sum_rows,
    swiglu,
    tanh,
    top_k,
    view,
)
from .tensor import Tensor
