#!/usr/bin/env python3
"""Write a GGUF file of a real model's shape with random weights, for measurements of speed and memory.

usage: synthetic_model.py SHAPE TYPE OUT.gguf [--layers N] [--vocab-from MODEL.gguf]

Speed depends on shapes and types, not on what the weights say. One tile of random rows is quantised
for each type and repeated, so that 40 GB take seconds. The answers are noise. With `--vocab-from` the
file gets that model's tokenizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pyggml import GGUF, DType, GGUFWriter, dtype, quantize

_TILE_ROWS = 64


@dataclass(frozen=True)
class Shape:
    """The sizes of a model; experts where n_expert is not 0."""

    arch: str
    n_embd: int
    n_layer: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_expert: int = 0
    n_expert_used: int = 0


SHAPES = {
    "llama-1b": Shape("llama", 2048, 16, 8192, 32, 8, 64, 128256),
    "llama-8b": Shape("llama", 4096, 32, 14336, 32, 8, 128, 128256),
    "llama-70b": Shape("llama", 8192, 80, 28672, 64, 8, 128, 128256),
    "qwen3-0.6b": Shape("qwen3", 1024, 28, 3072, 16, 8, 128, 151936),
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 48, 768, 32, 4, 128, 151936, 128, 8),
}


def tensors(s: Shape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Names, shapes and kinds: `big` for embedding and head, `matrix`, `norm`, `router`."""
    yield "token_embd.weight", (s.n_vocab, s.n_embd), "big"
    for i in range(s.n_layer):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", (s.n_embd,), "norm"
        for name, n in (("attn_q", s.n_head), ("attn_k", s.n_head_kv), ("attn_v", s.n_head_kv)):
            yield f"{b}{name}.weight", (n * s.head_dim, s.n_embd), "matrix"
        yield b + "attn_output.weight", (s.n_embd, s.n_head * s.head_dim), "matrix"
        if s.arch.startswith("qwen3"):
            yield b + "attn_q_norm.weight", (s.head_dim,), "norm"
            yield b + "attn_k_norm.weight", (s.head_dim,), "norm"
        yield b + "ffn_norm.weight", (s.n_embd,), "norm"
        experts: tuple[int, ...] = (s.n_expert,) if s.n_expert else ()
        suffix = "_exps" if experts else ""
        if experts:
            yield b + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), "router"
        for name in ("ffn_gate", "ffn_up"):
            yield f"{b}{name}{suffix}.weight", (*experts, s.n_ff, s.n_embd), "matrix"
        yield f"{b}ffn_down{suffix}.weight", (*experts, s.n_embd, s.n_ff), "matrix"
    yield "output_norm.weight", (s.n_embd,), "norm"
    yield "output.weight", (s.n_vocab, s.n_embd), "big"


def metadata(s: Shape, name: str) -> dict[str, object]:
    """The keys that such a model has."""
    a = s.arch
    keys: dict[str, object] = {
        "general.architecture": a, "general.name": name, f"{a}.block_count": s.n_layer, f"{a}.context_length": 131072,
        f"{a}.embedding_length": s.n_embd, f"{a}.feed_forward_length": s.n_ff, f"{a}.attention.head_count": s.n_head,
        f"{a}.attention.head_count_kv": s.n_head_kv, f"{a}.attention.key_length": s.head_dim,
        f"{a}.attention.value_length": s.head_dim, f"{a}.rope.dimension_count": s.head_dim,
        f"{a}.attention.layer_norm_rms_epsilon": 1e-5, f"{a}.rope.freq_base": 500000.0, f"{a}.vocab_size": s.n_vocab,
    }  # fmt: skip
    if s.n_expert:
        keys |= {f"{a}.expert_count": s.n_expert, f"{a}.expert_used_count": s.n_expert_used}
        keys[f"{a}.expert_feed_forward_length"] = s.n_ff
    return keys


def vocabulary(path: str | None, n_vocab: int) -> dict[str, object]:
    """Tokenizer keys: another file's, filled up with unused tokens, or none."""
    if path is None:
        return {"tokenizer.ggml.model": "no_vocab"}
    with GGUF(path) as file:
        keys = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.")}
    tokens = list(keys["tokenizer.ggml.tokens"])[:n_vocab]
    fill = n_vocab - len(tokens)
    keys["tokenizer.ggml.tokens"] = tokens + [f"<filler_{i}>" for i in range(fill)]
    types = np.asarray(keys["tokenizer.ggml.token_type"], np.int32)[:n_vocab]
    keys["tokenizer.ggml.token_type"] = np.concatenate([types, np.full(fill, 5, np.int32)])
    keys.pop("tokenizer.ggml.scores", None)
    return keys


class Tiles:
    """Random rows, quantised once for each type and row length."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(1)
        self._made: dict[tuple[str, int], np.ndarray] = {}

    def fill(self, shape: tuple[int, ...], kind: DType) -> np.ndarray:
        """The bytes of a weight."""
        key = kind.name, shape[-1]
        if key not in self._made:
            rows = self._rng.standard_normal((_TILE_ROWS, shape[-1]), np.float32) * shape[-1] ** -0.5
            self._made[key] = quantize(rows, kind)
        tile = self._made[key]
        n_bytes = int(np.prod(shape)) // kind.block_size * kind.type_size
        return np.resize(tile, n_bytes)


def write(
    shape: str, kind: str, out: str, *, n_layer: int | None = None, vocab_from: str | None = None
) -> None:
    """Write the file."""
    s = SHAPES[shape]
    if n_layer:
        s = Shape(**{**s.__dict__, "n_layer": n_layer})
    matrix = dtype(kind)
    big = dtype("q6_k") if kind in ("q4_k", "q4_0", "mxfp4") else matrix
    tiles = Tiles()
    with GGUFWriter(
        out, metadata(s, f"synthetic {shape} {kind}") | vocabulary(vocab_from, s.n_vocab)
    ) as writer:
        for name, dims, role in tensors(s):
            if role == "norm":
                writer.add_tensor(name, np.ones(dims, np.float32))
            elif role == "router":
                writer.add_tensor(name, tiles.fill(dims, dtype("f32")), "f32", shape=dims)
            else:
                use = big if role == "big" else matrix
                writer.add_tensor(name, lambda dims=dims, use=use: tiles.fill(dims, use), use, shape=dims)
        writer.write()


def main() -> None:
    """Parse the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", type=str.lower)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--vocab-from")
    args = parser.parse_args()
    write(args.shape, args.type, args.out, n_layer=args.layers, vocab_from=args.vocab_from)


if __name__ == "__main__":
    main()
