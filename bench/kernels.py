"""Our kernels beside ggml's, shape by shape: microseconds, GB/s and the part of the copy bandwidth.

python bench/kernels.py [--types q8_0,q4_k,q6_k] [--columns 1,4] [--models llama-8b,llama-8b/2,qwen3-30b-a3b]

Each row is one part of a decode step, captured in a CUDA graph over so many copies of its weights that no cache holds
them: norm, products and what follows. Weights are random bytes; only times are looked at. Needs one CUDA device.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ["GGML_CUDA_DISABLE_GRAPHS"] = "1"
os.environ["PYGGML_FUSED"] = "0"

import numpy as np

import pyggml as gg
from pyggml._ffi import ffi, lib
from pyggml.cuda_module import cuda_api, why, words

COLD_BYTES = 1.2e9
N_REPEATS = 5


@dataclass(frozen=True)
class Part:
    name: str
    rows: int
    k: int
    is_normed: bool = False
    is_gated: bool = False
    has_residual: bool = False


def layer(n_embd: int, n_qkv: int, n_heads: int, n_ff: int, n_ranks: int) -> list[Part]:
    return [
        Part("norm + qkv", n_qkv // n_ranks, n_embd, is_normed=True),
        Part("output", n_embd, n_heads // n_ranks, has_residual=n_ranks == 1),
        Part("norm + gate, up", n_ff // n_ranks, n_embd, is_normed=True, is_gated=True),
        Part("down", n_embd, n_ff // n_ranks, has_residual=n_ranks == 1),
    ]


MODELS = {
    "llama-8b": [*layer(4096, 6144, 4096, 14336, 1), Part("norm + head", 128256, 4096, is_normed=True)],
    "llama-8b/2": [*layer(4096, 6144, 4096, 14336, 2), Part("norm + head", 64128, 4096, is_normed=True)],
    "qwen3-30b-a3b": [
        Part("norm + qkv", 5120, 2048, is_normed=True),
        Part("output", 2048, 4096, has_residual=True),
        Part("norm + head", 151936, 2048, is_normed=True),
    ],
}


def n_bytes(part: Part, kind: str) -> int:
    dtype = gg.dtype(kind)
    return part.rows * part.k // dtype.block_size * dtype.type_size * (2 if part.is_gated else 1)


def build(g: gg.Graph, part: Part, kind: str, n: int, n_copies: int) -> None:
    x = g.input("x", (n, part.k))
    residual = g.input("residual", (n, part.rows))
    weight = g.weight(np.ones(part.k, np.float32))
    noise = np.random.default_rng(0).integers(0, 255, 1 << 24, np.uint8)

    def matrix(name: str) -> gg.Tensor:
        table = g.state(name, (part.rows, part.k), kind)
        for start in range(0, table.n_bytes, noise.nbytes):
            size = min(noise.nbytes, table.n_bytes - start)
            lib.ggml_backend_tensor_set(table.handle, ffi.from_buffer(noise), start, size)
        return table

    for i in range(n_copies):
        hidden = gg.rms_norm(x, 1e-5) * weight if part.is_normed else x
        y = gg.mul_mat(matrix(f"w{i}"), hidden)
        if part.is_gated:
            y = gg.swiglu(y, gg.mul_mat(matrix(f"u{i}"), hidden))
        g.output(f"y{i}", y + residual if part.has_residual else y)
    g.output("kept", x + 1.0)


def captured_us(backend: gg.Backend, launch: Callable[[], None], n_copies: int) -> float:
    """Of one copy, when the launches are replayed as one graph."""
    api, text = cuda_api(), why()
    assert api is not None
    launch()
    backend.synchronize()
    assert api.capture_begin(backend.handle, text, len(text)), words(text)
    launch()
    graph = api.capture_end(backend.handle, text, len(text))
    assert graph != ffi.NULL, words(text)
    seconds = []
    for _ in range(N_REPEATS + 1):
        start = time.perf_counter()
        api.graph_launch(graph, text, len(text))
        backend.synchronize()
        seconds.append(time.perf_counter() - start)
    api.graph_free(graph)
    return min(seconds[1:]) / n_copies * 1e6


def fused_runs(g: gg.Graph) -> list[object]:
    """What our kernels take of a built graph, also where it does not pay."""
    runs = []
    at = 0
    os.environ["PYGGML_FUSED"] = "all"
    while at < g.n_nodes:
        fused = ffi.new("pg_fused *")
        taken = lib.pg_fuse_match(g._graph, at, g.n_nodes, fused)
        runs += [fused] if taken else []
        at += max(1, taken)
    os.environ["PYGGML_FUSED"] = "0"
    return runs


def compare(backend: gg.Backend, part: Part, kind: str, n: int) -> tuple[float, float]:
    """Microseconds of ggml's kernels and of ours."""
    api, text = cuda_api(), why()
    assert api is not None
    n_copies = max(8, int(COLD_BYTES / n_bytes(part, kind)))
    with gg.Graph(backend) as g:
        build(g, part, kind, n, n_copies)
        g.build()
        runs = fused_runs(g)

        def plain() -> None:
            assert g._layout is not None
            assert lib.pg_plan_start(g._layout._plan, ffi.NULL, 0) == lib.GGML_STATUS_SUCCESS

        def ours() -> None:
            for run in runs:
                assert api.fuse_launch(run, backend.handle, text, len(text)), words(text)

        theirs_us = captured_us(backend, plain, n_copies)
        return theirs_us, captured_us(backend, ours, n_copies) * n_copies / len(runs) if runs else float(
            "nan"
        )


def copy_gb_s(backend: gg.Backend) -> float:
    """Bytes read and written by a large copy on the card."""
    n = 1 << 28
    with gg.Graph(backend) as g:
        g.output("y", g.state("x", (n,)).cont())
        g.build()

        def launch() -> None:
            assert g._layout is not None
            lib.pg_plan_start(g._layout._plan, ffi.NULL, 0)

        return 2 * 4 * n / captured_us(backend, launch, 1) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--types", default="q8_0,q4_k,q6_k")
    parser.add_argument("--columns", default="1")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    with gg.Backend("cuda:0") as backend:
        ceiling = copy_gb_s(backend)
        print(f"{backend.device.description}, copy {ceiling:.0f} GB/s")
        print("| model | type | columns | part | MB | ggml us | ours us | ratio | GB/s | of copy |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for model in options.models.split(","):
            for kind in options.types.split(","):
                for n in map(int, options.columns.split(",")):
                    for part in MODELS[model]:
                        theirs, ours = compare(backend, part, kind, n)
                        size = n_bytes(part, kind)
                        rate = size / ours / 1e3
                        print(
                            f"| {model} | {kind} | {n} | {part.name} | {size / 1e6:.1f} | {theirs:.1f} | {ours:.1f} "
                            f"| {theirs / ours:.2f} | {rate:.0f} | {rate / ceiling:.0%} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
