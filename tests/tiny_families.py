"""Tiny random GGUF models of the other families, the same bytes on every machine.

What a family's file holds comes from the engine's own table of weights, for the numbers that are written here.
llama.cpp refuses files that lack a tensor, hold one too many or one of another shape, so a wrong table cannot make a
model whose logits are stored. Each family has a base and an odd shape at least: other heads, odd widths, a tied head
where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tiny_quants import Draws, float_bytes, random_tensor
from tiny_vocab import vocabulary

from pyggml.engine.models import family
from pyggml.engine.weight_table import Weight

N_VOCAB, ODD_VOCAB = 320, 323
BASE: dict[str, Any] = {
    "block_count": 3, "context_length": 4096, "embedding_length": 128, "feed_forward_length": 192,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32,
    "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 32, "rope.freq_base": 10000.0,
}  # fmt: skip
ODD: dict[str, Any] = {
    "embedding_length": 192, "feed_forward_length": 224, "attention.head_count": 6, "attention.head_count_kv": 3,
}  # fmt: skip
ONE_KV = {"attention.head_count_kv": 1}
EXPERTS: dict[str, Any] = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 64}
FEW_EXPERTS: dict[str, Any] = {"expert_count": 6, "expert_used_count": 2}
LAYER_NORM: dict[str, Any] = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
WINDOW = {"attention.sliding_window": 8}
NORMS_OF_HEADS = ("attn_q_norm.weight", "attn_k_norm.weight")
QKV_BIASES = ("attn_q.bias", "attn_k.bias", "attn_v.bias")


@dataclass(frozen=True)
class Recipe:
    """What one file holds: keys beside BASE (None drops one), endings of the optional tensors that are there,
    parts of the names of tensors that are fused, types by part of the name, whether the head is the embedding's."""

    keys: dict[str, Any] = field(default_factory=dict)
    has: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    types: tuple[tuple[str, str], ...] = ()
    is_tied: bool = False

    def changed(self, keys: dict[str, Any], **others: Any) -> Recipe:
        """The same with other keys."""
        return replace(self, keys=self.keys | keys, **others)


def _with_odd(
    recipe: Recipe, odd: dict[str, Any] | None = None, *, is_tied: bool = True
) -> dict[str, Recipe]:
    """A family's base and odd shape."""
    changes = ODD | (FEW_EXPERTS if "expert_count" in recipe.keys else {}) | (odd or {})
    return {"": recipe, "odd": recipe.changed(changes, is_tied=is_tied)}


# Experts as wide as the key of dense layers says.
_PLAIN_EXPERTS = EXPERTS | {"expert_feed_forward_length": None, "feed_forward_length": 64}
_GRANITE = {"logit_scale": 0.5, "residual_scale": 0.5, "embedding_scale": 3.0, "attention.scale": 0.2}
_COHERE = LAYER_NORM | {"logit_scale": 0.5}
_YARN = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 1024,
}  # fmt: skip
_LONGROPE = {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.2, "rope.dimension_count": 24}
_PHI = Recipe(_LONGROPE | {"rope.scaling.original_context_length": 64}, has=("_long.weight", "_short.weight"),
              fused=("attn_qkv", "ffn_up"))  # fmt: skip
_LAYER_NORM_BIASES = ("_norm.bias",)
_ALL_BIASES = (*QKV_BIASES, "attn_output.bias", "ffn_up.bias", "ffn_down.bias")
_SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5}
_DEALT = EXPERTS | _SIGMOID | {"expert_shared_count": 1, "leading_dense_block_count": 1}
_PROBS = ("exp_probs_b.bias",)

_LATENT = {
    "attention.q_lora_rank": 64, "attention.kv_lora_rank": 64, "attention.head_count_kv": 1,
    "attention.key_length": 80, "attention.value_length": 64, "attention.key_length_mla": 48,
    "attention.value_length_mla": 32, "rope.dimension_count": 16,
}  # fmt: skip

_GEMMA4: dict[str, Any] = WINDOW | {
    "block_count": 4, "attention.sliding_window_pattern": [True, True, True, False],
    "attention.head_count_kv": [2, 2, 2, 1], "attention.key_length": 64, "attention.value_length": 64,
    "attention.key_length_swa": 32, "attention.value_length_swa": 32, "rope.dimension_count": 64,
    "rope.dimension_count_swa": 32, "rope.freq_base": 1e6, "embedding_length_per_layer_input": 0,
}  # fmt: skip
_GEMMA4_HAS = (*NORMS_OF_HEADS, "rope_freqs.weight", "layer_output_scale.weight")

RECIPES: dict[str, dict[str, Recipe]] = {
    "mistral3": {
        **_with_odd(
            Recipe(_YARN | {"attention.temperature_scale": 0.3, "rope.scaling.original_context_length": 10})
        ),
        "experts": Recipe(_PLAIN_EXPERTS),
    },
    "smollm3": _with_odd(Recipe({"block_count": 4})),
    "internlm2": _with_odd(Recipe(), is_tied=False),
    "seed_oss": _with_odd(Recipe(has=QKV_BIASES)),
    "granite": _with_odd(Recipe(_GRANITE), {"rope.scaling.finetuned": False}),
    "granitemoe": _with_odd(
        Recipe(_PLAIN_EXPERTS | _GRANITE), {"expert_shared_feed_forward_length": 96, "attention.scale": None}
    ),
    "hunyuan-dense": _with_odd(
        Recipe({"rope.scaling.alpha": 50.0}, has=NORMS_OF_HEADS), {"expert_count": 1, "expert_used_count": 1}
    ),
    "phi3": {
        **_with_odd(_PHI, {"rope.scaling.original_context_length": 1024}),
        "plain": Recipe(WINDOW, fused=("ffn_up",)),
    },
    "gemma": _with_odd(Recipe(ONE_KV, is_tied=True)),
    "gemma2": _with_odd(Recipe(WINDOW | {"attn_logit_softcapping": 4.0}, is_tied=True)),
    "gemma4": {
        **_with_odd(
            Recipe(_GEMMA4, has=_GEMMA4_HAS, is_tied=True), {"attention.head_count_kv": [3, 3, 3, 1]}
        ),
        "experts": Recipe(
            _GEMMA4 | EXPERTS, has=(*_GEMMA4_HAS, "ffn_down_exps.scale"), fused=("ffn_gate_up_exps",)
        ),
        "small": Recipe(
            _GEMMA4
            | {
                "block_count": 6,
                "attention.sliding_window_pattern": [True, True, False, True, True, False],
                "attention.head_count_kv": 1,
                "attention.shared_kv_layers": 3,
                "embedding_length_per_layer_input": 32,
                "feed_forward_length": [192, 192, 192, 384, 384, 384],
            },
            has=_GEMMA4_HAS,
            is_tied=True,
        ),
    },
    "command-r": {
        **_with_odd(Recipe(_COHERE, is_tied=True)),
        "norms": Recipe(
            _COHERE
            | {
                "block_count": 64,
                "embedding_length": 64,
                "feed_forward_length": 64,
                "attention.head_count": 2,
                "attention.head_count_kv": 1,
            },
            has=NORMS_OF_HEADS,
            is_tied=True,
        ),
    },
    "cohere2": _with_odd(Recipe(_COHERE | WINDOW | {"block_count": 4}, is_tied=True)),
    "stablelm": {
        **_with_odd(
            Recipe(
                LAYER_NORM | {"rope.dimension_count": 8},
                has=(*QKV_BIASES, *_LAYER_NORM_BIASES, "ffn_norm.weight"),
            ),
            is_tied=False,
        ),
        "parallel": Recipe(
            LAYER_NORM | {"rope.dimension_count": 8}, has=(*NORMS_OF_HEADS, *_LAYER_NORM_BIASES)
        ),
    },
    "starcoder2": _with_odd(Recipe(LAYER_NORM, has=(*_ALL_BIASES, *_LAYER_NORM_BIASES))),
    "nemotron": _with_odd(
        Recipe(LAYER_NORM | {"rope.dimension_count": 16}, has=_LAYER_NORM_BIASES), is_tied=False
    ),
    "olmo2": {
        **_with_odd(Recipe(), is_tied=False),
        "windows": Recipe(WINDOW | _YARN | {"block_count": 4}),
    },
    "exaone4": {
        **_with_odd(Recipe(has=NORMS_OF_HEADS)),
        "windows": Recipe(
            WINDOW
            | {
                "block_count": 64,
                "embedding_length": 64,
                "feed_forward_length": 64,
                "attention.head_count": 2,
                "attention.head_count_kv": 1,
            },
            has=NORMS_OF_HEADS,
        ),
    },
    "glm4": _with_odd(Recipe({"rope.dimension_count": 16}, has=QKV_BIASES, fused=("ffn_up",))),
    "muse-glimmer": _with_odd(
        Recipe(WINDOW | {"block_count": 4, "logit_scale": 0.7}, has=NORMS_OF_HEADS), is_tied=False
    ),
    "qwen2moe": _with_odd(
        Recipe(
            EXPERTS | {"expert_shared_feed_forward_length": 96},
            has=(*QKV_BIASES, "ffn_gate_inp_shexp.weight"),
        ),
        is_tied=False,
    ),
    "olmoe": _with_odd(
        Recipe(_PLAIN_EXPERTS | {"attention.head_count_kv": 4}),
        {"attention.head_count_kv": 6, "feed_forward_length": 64},
        is_tied=False,
    ),
    "minimax-m2": _with_odd(
        Recipe(
            EXPERTS | {"expert_gating_func": 2, "feed_forward_length": 64, "rope.dimension_count": 16},
            has=_PROBS,
        ),
        {"feed_forward_length": 64},
        is_tied=False,
    ),
    "ernie4_5-moe": _with_odd(
        Recipe(EXPERTS | {"leading_dense_block_count": 1, "interleave_moe_layer_step": 1}, has=_PROBS),
        {"expert_shared_feed_forward_length": 96},
    ),
    "bailingmoe2": _with_odd(
        Recipe(
            _DEALT | {"expert_group_count": 4, "expert_group_used_count": 2, "rope.dimension_count": 16},
            has=(*NORMS_OF_HEADS, *_PROBS),
            fused=("attn_qkv",),
        ),
        {"expert_group_count": 3, "expert_shared_count": 2, "expert_gating_func": 1},
        is_tied=False,
    ),
    "dots1": _with_odd(
        Recipe(_DEALT | {"attention.head_count_kv": 4}, has=(*NORMS_OF_HEADS, *_PROBS)),
        {"attention.head_count_kv": 6, "expert_shared_count": 2},
        is_tied=False,
    ),
    "hunyuan-moe": _with_odd(
        Recipe(
            EXPERTS | {"feed_forward_length": 64, "expert_shared_feed_forward_length": 96}, has=NORMS_OF_HEADS
        ),
        {"feed_forward_length": 64, "expert_shared_feed_forward_length": None},
    ),
    "glm4moe": {
        **_with_odd(Recipe(_DEALT | {"rope.dimension_count": 16}, has=(*QKV_BIASES, *_PROBS))),
        "norms": Recipe(
            _DEALT | {"nextn_predict_layers": 1, "block_count": 4}, has=(*NORMS_OF_HEADS, *_PROBS)
        ),
    },
    "gpt-oss": {
        variant: replace(recipe, types=(("_exps.weight", "MXFP4"),)) if variant else recipe
        for variant, recipe in _with_odd(
            Recipe(
                EXPERTS | WINDOW | _YARN,
                has=(*QKV_BIASES, "attn_output.bias", "ffn_gate_inp.bias", "_exps.bias"),
            ),
            is_tied=False,
        ).items()
    },
    "deepseek2": {
        **_with_odd(
            Recipe(
                _DEALT
                | _LATENT
                | _YARN
                | {
                    "rope.scaling.yarn_log_multiplier": 0.0707,
                    "expert_group_count": 4,
                    "expert_group_used_count": 2,
                },
                has=_PROBS,
            ),
            {
                "expert_group_count": None,
                "expert_group_used_count": None,
                "expert_gating_func": None,
                "attention.head_count_kv": 1,
                "rope.scaling.yarn_log_multiplier": 0.1,
            },
        ),
        "old": Recipe(
            _DEALT
            | {
                "attention.q_lora_rank": 64,
                "attention.kv_lora_rank": 32,
                "rope.dimension_count": 16,
                "attention.key_length": 48,
                "attention.head_count_kv": 4,
            }
        ),
        "lite": Recipe(
            _DEALT
            | _LATENT
            | {
                "attention.q_lora_rank": None,
                "block_count": 26,
                "embedding_length": 64,
                "leading_dense_block_count": 25,
            }
        ),
        "fused": Recipe(_DEALT | _LATENT, fused=("ffn_gate_up_exps",)),
    },
    "mistral4": _with_odd(
        Recipe(
            _DEALT
            | _LATENT
            | _YARN
            | {
                "rope.scaling.yarn_log_multiplier": 0.1,
                "attention.temperature_scale": 0.1,
                "attention.temperature_length": 7,
            }
        ),
        {"attention.head_count_kv": 1},
    ),
    "llama4": _with_odd(
        Recipe(EXPERTS | {"expert_used_count": 1, "interleave_moe_layer_step": 2, "block_count": 4}),
        {"expert_used_count": 1, "interleave_moe_layer_step": 1},
    ),
}


def weights_of(arch: str, variant: str = "") -> tuple[dict[str, Any], list[Weight]]:
    """The metadata of a model, keys in full, and the rows of its tensors as they lie in the file."""
    recipe = RECIPES[arch][variant]
    keys = {name: value for name, value in (BASE | recipe.keys).items() if value is not None}
    metadata = {f"{arch}.{name}": value for name, value in keys.items()}
    n_vocab = N_VOCAB if not variant else ODD_VOCAB
    found = family(arch)
    rows: dict[str, Weight] = {}
    for row in found.table(found.hparams(metadata, arch, n_vocab)):
        if row.name == "output.weight" and recipe.is_tied:
            continue
        if row.optional and not row.name.endswith(recipe.has or ("none",)):
            continue
        if row.source and any(part in row.source.name for part in recipe.fused):
            row = Weight(row.source.name, row.source.shape)
        rows[row.name] = row
    metadata[f"{arch}.vocab_size"] = n_vocab
    return metadata, list(rows.values())


def _type_of(row: Weight, quant: str, recipe: Recipe) -> str:
    is_plain = len(row.shape) == 1 or row.name.endswith((".bias", "_norm.weight", "ffn_gate_inp.weight"))
    if is_plain:
        return "F32"
    return next((kind for part, kind in recipe.types if part in row.name), quant)


def _data(row: Weight, quant: str, seed: int, *, is_tied: bool) -> np.ndarray:
    """The bytes of one tensor."""
    draws = Draws(seed, row.name)
    n = int(np.prod(row.shape))
    if row.name.startswith("rope_f"):
        most = 3 if "short" in row.name else 7
        return float_bytes("F32", 1 + most * np.arange(n) / (n - 1))
    if row.name.endswith(".bias"):
        return float_bytes("F32", (0.3 * draws.bell(n)).reshape(row.shape))
    if "norm" in row.name or row.name.endswith("scale.weight"):
        middle = 1.5 if row.name.endswith(NORMS_OF_HEADS) else 1.0
        return float_bytes("F32", (middle + 0.4 * draws.flat(n)).reshape(row.shape))
    if len(row.shape) == 1:
        return float_bytes("F32", draws.bell(n) * (1 if "sinks" in row.name else 2 * n**-0.5))
    std = row.shape[-1] ** -0.5
    if row.name == "token_embd.weight":
        std = 3 * std if is_tied else 1.0
    else:
        factors = {"output.weight": 3, "attn_q": 1.5, "attn_k": 1.5, "attn_output": 1.5, "ffn_gate_inp": 2}
        std *= next((factor for part, factor in factors.items() if part in row.name), 1)
    return random_tensor(draws, quant, row.shape, std)


def _typed(metadata: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Each key with the writer's method for its type."""
    for key, value in metadata.items():
        kinds = {bool: "bool", int: "uint32", float: "float32", str: "string"}
        yield f"add_{kinds.get(type(value), 'array')}", key, value


def write_family(
    path: str | Path, arch: str, *, quant: str = "F32", seed: int = 0, variant: str = ""
) -> Path:
    """Write a tiny random model of a family and return its path."""
    recipe = RECIPES[arch][variant]
    metadata, rows = weights_of(arch, variant)
    writer = GGUFWriter(path, arch)
    writer.add_name(f"tiny {variant} {quant}")  # llama.cpp looks for "phi3" in names
    for method, key, value in _typed(metadata):
        getattr(writer, method)(key, value)
    vocabulary(metadata[f"{arch}.vocab_size"]).write(writer)
    for row in rows:
        kind = _type_of(row, quant, recipe)
        data = _data(row, kind, seed, is_tied=recipe.is_tied)
        writer.add_tensor(row.name, data, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file(Path(path))
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)
