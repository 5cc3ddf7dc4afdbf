"""Tiny random GGUF models of every family, the same bytes on every machine.

`write_tiny` is made for tests: weights are random but well scaled (logits of about 3, attention far from uniform,
norm weights spread around 1), so a wrong tensor, position, window or scale shows up in the logits. A tensor's data
depends on the seed, its own name, type and shape only: two variants of a model share all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tiny_quants import Draws, float_bytes, random_tensor
from tiny_vocab import vocabulary

QUANTS = (
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "Q5_K", "Q6_K", "Q2_K", "Q3_K",
    "IQ4_XS", "IQ4_NL", "IQ3_XXS", "IQ2_XXS", "MXFP4", "mixed",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """The sizes of a model, in GGUF's words."""

    n_layer: int = 2
    n_embd: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 512
    n_vocab: int = 320
    n_ctx: int = 4096
    n_expert: int = 0
    n_expert_used: int = 0
    n_swa: int = 0


@dataclass(frozen=True)
class Traits:
    """What a family's or a variant's file holds beside the weights that all have."""

    is_tied: bool = False
    has_copied_head: bool = False
    has_qkv_bias: bool = False
    has_all_biases: bool = False
    has_qk_norm: bool = False
    has_post_norms: bool = False
    has_rope_freqs: bool = False
    rope_base: float = 10000.0
    rope_scaling: str = ""
    norm_eps: float = 1e-5


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to write; `std` 0 marks the kinds that are not weights."""

    name: str
    shape: tuple[int, ...]
    std: float


MOE = {"n_expert": 8, "n_expert_used": 2, "n_ff": 256}
FAMILIES: dict[str, tuple[Shape, Traits]] = {
    "llama": (Shape(), Traits()),
    "qwen2": (Shape(), Traits(has_qkv_bias=True, rope_base=1e6, norm_eps=1e-6)),
    "qwen3": (Shape(head_dim=128), Traits(has_qk_norm=True, rope_base=1e6, norm_eps=1e-6)),
    "qwen3moe": (replace(Shape(), **MOE), Traits(has_qk_norm=True, rope_base=1e6, norm_eps=1e-6)),
    "gemma3": (
        Shape(n_layer=7, n_head_kv=1, n_ff=256, n_swa=8),
        Traits(is_tied=True, has_qk_norm=True, has_post_norms=True, rope_base=1e6, norm_eps=1e-6),
    ),
}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "tied": ({}, {"is_tied": True}),
    "tied_copy": ({}, {"is_tied": True, "has_copied_head": True}),
    "bias": ({}, {"has_qkv_bias": True, "has_all_biases": True}),
    "rope_freqs": ({}, {"has_rope_freqs": True}),
    "linear": ({}, {"rope_scaling": "linear"}),
    "yarn": ({}, {"rope_scaling": "yarn"}),
    "wide_head": ({"head_dim": 128}, {}),
    "moe": (MOE, {}),
}
ROPE_FACTOR = 4.0


def shape_of(arch: str, variant: str = "", **overrides: int) -> tuple[Shape, Traits]:
    """Sizes and traits of a family with a variant ("tied", or several joined by "+") and single sizes changed."""
    shape, traits = FAMILIES[arch]
    for name in filter(None, variant.split("+")):
        shape_changes, trait_changes = VARIANTS[name]
        shape, traits = replace(shape, **shape_changes), replace(traits, **trait_changes)
    return replace(shape, **overrides), traits


def layer_specs(s: Shape, t: Traits, blk: str) -> Iterator[TensorSpec]:
    """The tensors of one layer; `blk` is "blk.N."."""
    n_q, n_kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    unit = s.n_embd**-0.5
    yield TensorSpec(blk + "attn_norm.weight", (s.n_embd,), 0)
    yield TensorSpec(blk + "attn_q.weight", (n_q, s.n_embd), 1.5 * unit)
    yield TensorSpec(blk + "attn_k.weight", (n_kv, s.n_embd), 1.5 * unit)
    yield TensorSpec(blk + "attn_v.weight", (n_kv, s.n_embd), unit)
    if t.has_qkv_bias:
        for which, width in (("q", n_q), ("k", n_kv), ("v", n_kv)):
            yield TensorSpec(f"{blk}attn_{which}.bias", (width,), 0)
    if t.has_qk_norm:
        yield TensorSpec(blk + "attn_q_norm.weight", (s.head_dim,), 0)
        yield TensorSpec(blk + "attn_k_norm.weight", (s.head_dim,), 0)
    yield TensorSpec(blk + "attn_output.weight", (s.n_embd, n_q), 1.5 * n_q**-0.5)
    if t.has_all_biases:
        yield TensorSpec(blk + "attn_output.bias", (s.n_embd,), 0)
    if t.has_post_norms:
        yield TensorSpec(blk + "post_attention_norm.weight", (s.n_embd,), 0)
    yield TensorSpec(blk + "ffn_norm.weight", (s.n_embd,), 0)
    experts = (s.n_expert,) if s.n_expert else ()
    suffix = "_exps" if s.n_expert else ""
    if s.n_expert:
        yield TensorSpec(blk + "ffn_gate_inp.weight", (s.n_expert, s.n_embd), 2 * unit)
    for which, n_out, n_in in (
        ("gate", s.n_ff, s.n_embd),
        ("up", s.n_ff, s.n_embd),
        ("down", s.n_embd, s.n_ff),
    ):
        yield TensorSpec(f"{blk}ffn_{which}{suffix}.weight", (*experts, n_out, n_in), n_in**-0.5)
        if t.has_all_biases and not s.n_expert:
            yield TensorSpec(f"{blk}ffn_{which}.bias", (n_out,), 0)
    if t.has_post_norms:
        yield TensorSpec(blk + "post_ffw_norm.weight", (s.n_embd,), 0)


def tensor_specs(s: Shape, t: Traits) -> Iterator[TensorSpec]:
    """All tensors of a model, in the order of the file."""
    head_std = 3 * s.n_embd**-0.5
    yield TensorSpec("token_embd.weight", (s.n_vocab, s.n_embd), head_std if t.is_tied else 1.0)
    if t.has_rope_freqs:
        yield TensorSpec("rope_freqs.weight", (s.head_dim // 2,), 0)
    for layer in range(s.n_layer):
        yield from layer_specs(s, t, f"blk.{layer}.")
    yield TensorSpec("output_norm.weight", (s.n_embd,), 0)
    if not t.is_tied or t.has_copied_head:
        yield TensorSpec("output.weight", (s.n_vocab, s.n_embd), head_std)


def mixed_type(name: str) -> str:
    """The type of a tensor in a "mixed" file, which varies by role and layer as dynamic quantisations do."""
    if name in ("token_embd.weight", "output.weight"):
        return "Q6_K"
    _, layer, role, _ = name.split(".")
    by_layer = {
        "attn_q": ("Q4_K", "IQ4_XS"), "attn_k": ("Q5_K", "Q8_0"), "attn_v": ("Q6_K", "Q8_0"),
        "attn_output": ("IQ4_XS", "Q5_K"), "ffn_gate": ("IQ3_XXS", "Q2_K"), "ffn_up": ("IQ2_XXS", "Q3_K"),
        "ffn_down": ("Q4_K", "Q6_K"),
    }  # fmt: skip
    return by_layer[role.removesuffix("_exps")][int(layer) % 2]


def tensor_data(spec: TensorSpec, quant: str, seed: int) -> tuple[np.ndarray, str]:
    """The bytes of a tensor and its type's name."""
    draws = Draws(seed, spec.name)
    n = spec.shape[-1]
    if spec.name == "rope_freqs.weight":
        return float_bytes("F32", 1 + 7 * np.arange(n) / (n - 1)), "F32"
    if spec.name.endswith(".bias"):
        return float_bytes("F32", 0.3 * draws.bell(n)), "F32"
    if spec.name.endswith(("_q_norm.weight", "_k_norm.weight")):
        return float_bytes("F32", 1.5 + 0.4 * draws.flat(n)), "F32"
    if spec.name.endswith("norm.weight"):
        return float_bytes("F32", 1 + 0.4 * draws.flat(n)), "F32"
    if spec.name.endswith("ffn_gate_inp.weight"):
        quant = "F32"
    elif quant == "mixed":
        quant = mixed_type(spec.name)
    return random_tensor(draws, quant, spec.shape, spec.std), quant


def write_metadata(writer: GGUFWriter, s: Shape, t: Traits, name: str) -> None:
    """Add the keys that describe the model."""
    writer.add_name(name)
    writer.add_block_count(s.n_layer)
    writer.add_context_length(s.n_ctx)
    writer.add_embedding_length(s.n_embd)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_layer_norm_rms_eps(t.norm_eps)
    writer.add_rope_freq_base(t.rope_base)
    writer.add_vocab_size(s.n_vocab)
    writer.add_quantization_version(2)
    if writer.arch == "llama":
        writer.add_rope_dimension_count(s.head_dim)
    if s.n_expert:
        writer.add_expert_count(s.n_expert)
        writer.add_expert_used_count(s.n_expert_used)
        if writer.arch == "qwen3moe":
            writer.add_expert_feed_forward_length(s.n_ff)
    if s.n_swa:
        writer.add_sliding_window(s.n_swa)
    if t.rope_scaling:
        writer.add_string(f"{writer.arch}.rope.scaling.type", t.rope_scaling)
        writer.add_rope_scaling_factor(ROPE_FACTOR)
        writer.add_rope_scaling_orig_ctx_len(s.n_ctx // int(ROPE_FACTOR))


def write_tiny(
    path: str | Path,
    arch: str,
    *,
    quant: str = "F32",
    seed: int = 0,
    variant: str = "",
    n_shards: int = 1,
    omit: tuple[str, ...] = (),
    **overrides: int,
) -> Path:
    """Write a tiny random model and return its path (of several shards, the first one's).

    `quant` is one of QUANTS or another type with random blocks, `variant` joins names of VARIANTS by "+", `omit`
    names tensors to leave out, and `overrides` change fields of Shape. With `n_shards` the files are called
    `<stem>-0000N-of-0000M.gguf`, and `path` is not written itself.
    """
    path = Path(path)
    s, t = shape_of(arch, variant, **overrides)
    specs = [spec for spec in tensor_specs(s, t) if spec.name not in omit]
    per_shard = -(-len(specs) // n_shards) if n_shards > 1 else 0
    writer = GGUFWriter(path, arch, split_max_tensors=per_shard)
    write_metadata(writer, s, t, f"tiny {arch} {variant} {quant}")
    vocabulary(s.n_vocab).write(writer)
    for spec in specs:
        source = spec
        if t.has_copied_head and spec.name == "output.weight":
            source = replace(spec, name="token_embd.weight")
        data, type_name = tensor_data(source, quant, seed)
        writer.add_tensor(spec.name, data, raw_dtype=GGMLQuantizationType[type_name])
    if n_shards > 1 and len(writer.tensors) != n_shards:
        raise ValueError(f"{len(specs)} tensors cannot be dealt to {n_shards} shards")
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if n_shards == 1 else path.with_name(f"{path.stem}-00001-of-{n_shards:05d}.gguf")
