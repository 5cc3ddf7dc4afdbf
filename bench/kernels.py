"""Our kernels beside ggml's, shape by shape: microseconds, GB/s and the part of the copy bandwidth.

python bench/kernels.py [--types q8_0,q4_k,q6_k] [--columns 1,2,4,8,16] [--models llama-8b,llama-8b/2,qwen3-30b-a3b]

Each row is one part of a decode step, captured in a CUDA graph over so many copies of its weights that no cache holds
them: norm, products and what follows. In a row of a layer its products follow each other and ours start early, as in a
step, with nothing between them. Weights are random bytes; only times are looked at. Needs one CUDA device.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

os.environ["GGML_CUDA_DISABLE_GRAPHS"] = "1"
os.environ["PYGGML_FUSED"] = "0"

import numpy as np

import pyggml as gg
from pyggml._ffi import ffi, lib
from pyggml.cuda_module import cuda_api, why, words

COLD_BYTES = 1.2e9
MAX_COPIES = 400
N_REPEATS = 5
NOISE = np.random.default_rng(0).integers(0, 255, 1 << 24, np.uint8)


@dataclass(frozen=True)
class Part:
    name: str
    rows: int
    k: int
    is_normed: bool = False
    is_gated: bool = False
    has_residual: bool = False
    is_router: bool = False  # of float32, and what it reads is read by others too
    n_runs = 1  # of ours

    def n_bytes(self, kind: str) -> int:
        return size_of(self.rows * self.k, self.type_of(kind)) * (2 if self.is_gated else 1)

    def type_of(self, kind: str) -> str:
        return "f32" if self.is_router else kind

    def inputs(self, g: gg.Graph, n: int) -> dict[str, gg.Tensor]:
        return {
            "x": g.input(f"x of {self.name}", (n, self.k)),
            "residual": g.input(f"residual of {self.name}", (n, self.rows)),
            "weight": g.weight(np.ones(self.k, np.float32)),
        }

    def add(self, g: gg.Graph, kind: str, i: int, given: dict[str, gg.Tensor]) -> None:
        shape, name = (self.rows, self.k), f"{self.name} {i}"
        hidden = gg.rms_norm(given["x"], 1e-5) * given["weight"] if self.is_normed else given["x"]
        y = gg.mul_mat(matrix(g, f"w of {name}", shape, self.type_of(kind)), hidden)
        if self.is_router:
            g.output(f"normed {name}", hidden)
        if self.is_gated:
            y = gg.swiglu(y, gg.mul_mat(matrix(g, f"u of {name}", shape, kind), hidden))
        g.output(f"y of {name}", y + given["residual"] if self.has_residual else y)

    def build(self, g: gg.Graph, kind: str, n: int, n_copies: int) -> None:
        given = self.inputs(g, n)
        for i in range(n_copies):
            self.add(g, kind, i, given)
        g.output("kept", given["x"] + 1.0)


@dataclass(frozen=True)
class Layer:
    """Parts one behind the other, layer after layer."""

    name: str
    parts: tuple[Part, ...]

    @property
    def n_runs(self) -> int:
        return len(self.parts)

    def n_bytes(self, kind: str) -> int:
        return sum(part.n_bytes(kind) for part in self.parts)

    def build(self, g: gg.Graph, kind: str, n: int, n_copies: int) -> None:
        given = [part.inputs(g, n) for part in self.parts]
        for i in range(n_copies):
            for part, of_part in zip(self.parts, given):
                part.add(g, kind, i, of_part)
        for part, of_part in zip(self.parts, given):
            g.output(f"kept of {part.name}", of_part["x"] + 1.0)


@dataclass(frozen=True)
class ExpertPart:
    """Gate, up and down of the experts that each token chose, all of them different ones."""

    name: str
    n_embd: int
    n_ff: int
    n_used: int
    n_runs = 1

    def n_bytes(self, kind: str) -> int:
        """Of one token."""
        return size_of(3 * self.n_used * self.n_ff * self.n_embd, kind)

    def build(self, g: gg.Graph, kind: str, n: int, n_copies: int) -> None:
        n_experts = self.n_used * max(n, 2)
        x = g.input("x", (n, self.n_embd))
        weights = g.weight(np.full((n, self.n_used, 1), 1 / self.n_used, np.float32))
        scores = np.stack([np.roll(np.arange(n_experts), i * self.n_used) for i in range(n)])
        ids = gg.top_k(g.weight(scores.astype(np.float32)), self.n_used)
        rows = x.reshape(n, 1, self.n_embd)
        for i in range(n_copies):
            wide, narrow = (n_experts, self.n_ff, self.n_embd), (n_experts, self.n_embd, self.n_ff)
            gate, up = (gg.mul_mat_id(matrix(g, f"{name}{i}", wide, kind), rows, ids) for name in "gu")
            each = gg.mul_mat_id(matrix(g, f"d{i}", narrow, kind), gg.swiglu(gate, up), ids) * weights
            total = each[:, 0, :]
            for place in range(1, self.n_used):
                total = total + each[:, place, :]
            g.output(f"y{i}", total)
        g.output("kept", x + 1.0)


def size_of(n_weights: int, kind: str) -> int:
    dtype = gg.dtype(kind)
    return n_weights // dtype.block_size * dtype.type_size


def matrix(g: gg.Graph, name: str, shape: tuple[int, ...], kind: str) -> gg.Tensor:
    """Random bytes."""
    table = g.state(name, shape, kind)
    for start in range(0, table.n_bytes, NOISE.nbytes):
        size = min(NOISE.nbytes, table.n_bytes - start)
        lib.ggml_backend_tensor_set(table.handle, ffi.from_buffer(NOISE), start, size)
    return table


def layer(n_embd: int, n_qkv: int, n_heads: int, n_ff: int, n_ranks: int) -> list[Part | Layer]:
    parts = (
        Part("norm + qkv", n_qkv // n_ranks, n_embd, is_normed=True),
        Part("output", n_embd, n_heads // n_ranks, has_residual=n_ranks == 1),
        Part("norm + gate, up", n_ff // n_ranks, n_embd, is_normed=True, is_gated=True),
        Part("down", n_embd, n_ff // n_ranks, has_residual=n_ranks == 1),
    )
    return [*parts, Layer("a layer", parts)]


MODELS: dict[str, Sequence[Part | Layer | ExpertPart]] = {
    "llama-8b": [*layer(4096, 6144, 4096, 14336, 1), Part("norm + head", 128256, 4096, is_normed=True)],
    "llama-8b/2": [*layer(4096, 6144, 4096, 14336, 2), Part("norm + head", 64128, 4096, is_normed=True)],
    "llama-70b": [*layer(8192, 10240, 8192, 28672, 1), Part("norm + head", 128256, 8192, is_normed=True)],
    "llama-70b/2": layer(8192, 10240, 8192, 28672, 2),
    "qwen3-30b-a3b": [
        Part("norm + qkv", 5120, 2048, is_normed=True),
        Part("output", 2048, 4096, has_residual=True),
        Part("norm + head", 151936, 2048, is_normed=True),
        Part("norm + router", 128, 2048, is_normed=True, is_router=True),
        ExpertPart("experts", 2048, 768, 8),
    ],
    # Their 768 are three blocks of the K types: one of two ranks has two of them, else both have half.
    "qwen3-30b-a3b/2": [
        ExpertPart("experts, 512 of each", 2048, 512, 8),
        ExpertPart("experts, 256 of each", 2048, 256, 8),
        ExpertPart("4 whole experts", 2048, 768, 4),
    ],
}


def captured_us(backend: gg.Backend, launch: Callable[[], None], n_copies: int) -> float:
    """Of one copy, when the launches are replayed as one graph."""
    api, text = cuda_api(), why()
    assert api is not None
    launch()
    backend.synchronize()
    assert api.capture_begin(backend.handle, True, text, len(text)), words(text)
    launch()
    graph = api.capture_end(backend.handle, ffi.NULL, text, len(text))
    assert graph != ffi.NULL, words(text)
    seconds: dict[int, float] = {}
    for n_launches in (1, 3):  # a launch and a wait take a time of their own
        runs = []
        for _ in range(N_REPEATS + 1):
            start = time.perf_counter()
            for _ in range(n_launches):
                assert api.graph_launch(graph, text, len(text)), words(text)
            backend.synchronize()
            runs.append(time.perf_counter() - start)
        seconds[n_launches] = min(runs[1:])
    api.graph_free(graph)
    return (seconds[3] - seconds[1]) / 2 / n_copies * 1e6


def fused_runs(g: gg.Graph) -> list[Any]:
    """What our kernels take of a built graph, also where it does not pay."""
    runs = []
    at = 0
    os.environ["PYGGML_FUSED"] = "all"
    while at < g.n_nodes:
        fused = ffi.new("pg_fused *")
        taken = lib.pg_fuse_match(g._graph, at, g.n_nodes, False, fused)
        runs += [fused] if taken else []
        at += max(1, taken)
    os.environ["PYGGML_FUSED"] = "0"
    return runs


def compare(backend: gg.Backend, part: Part | Layer | ExpertPart, kind: str, n: int) -> tuple[float, float]:
    """Microseconds of ggml's kernels and of ours."""
    api, text = cuda_api(), why()
    assert api is not None
    n_copies = max(8, min(MAX_COPIES, int(COLD_BYTES / part.n_bytes(kind))))
    with gg.Graph(backend) as g:
        part.build(g, kind, n, n_copies)
        g.build()
        runs = fused_runs(g)
        for run in runs if part.n_runs > 1 else ():
            run.is_before_ours = run.is_behind_ours = True

        def plain() -> None:
            assert g._layout is not None
            assert lib.pg_plan_start(g._layout._plan, ffi.NULL, 0) == lib.GGML_STATUS_SUCCESS

        def ours() -> None:
            for run in runs:
                assert api.fuse_launch(run, backend.handle, text, len(text)), words(text)

        theirs_us = captured_us(backend, plain, n_copies)
        if not runs:
            return theirs_us, float("nan")
        n_taken = len(runs) / part.n_runs  # copies
        return theirs_us, captured_us(backend, ours, n_copies) * n_copies / n_taken


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
    parser.add_argument("--models", default="llama-8b,llama-8b/2,qwen3-30b-a3b,qwen3-30b-a3b/2")
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
                        size = part.n_bytes(kind) * (n if isinstance(part, ExpertPart) else 1)
                        rate = size / ours / 1e3
                        print(
                            f"| {model} | {kind} | {n} | {part.name} | {size / 1e6:.1f} | {theirs:.1f} | {ours:.1f} "
                            f"| {theirs / ours:.2f} | {rate:.0f} | {rate / ceiling:.0%} |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
