"""DeepSeek V2, V3, R1, Kimi K2, GLM 4.7 Flash (`deepseek2`), Mistral 4: latent attention, later layers with experts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..blocks.latent_attention import latent_attention
from ..blocks.layers import sequential
from ..hparams import HParams, Latent, Temperature, read_router
from ..keys import Keys
from ..weight_table import (
    Cut,
    Use,
    Weight,
    embedding_rows,
    expert_rows,
    feed_forward_rows,
    norm_rows,
    scale_rows,
)
from .family import Family, numbers
from .mixture import dense_lead

_N_VOCAB_GLM_FLASH, _N_VOCAB_KANANA = 154880, 128256


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from _attention_rows(hp, i)
        yield from norm_rows(f"blk.{i}.ffn_norm", hp.n_embd)
        yield from (expert_rows if hp.has_experts(i) else feed_forward_rows)(hp, i)


def _attention_rows(hp: HParams, i: int) -> Iterator[Weight]:
    b, a = f"blk.{i}.", hp.latent
    assert a is not None, "the family has latent attention"
    n_q = hp.n_head * (a.n_nope + a.n_rope)
    yield from norm_rows(b + "attn_norm", hp.n_embd)
    yield from scale_rows(b + "attn_output")
    if a.n_lora_q:
        yield Weight(b + "attn_q_a.weight", (a.n_lora_q, hp.n_embd), use=Use.MUL_MAT)
        yield Weight(b + "attn_q_a_norm.weight", (a.n_lora_q,))
        yield Weight(b + "attn_q_b.weight", (n_q, a.n_lora_q), Cut.HEADS, Use.MUL_MAT)
    else:
        yield Weight(b + "attn_q.weight", (n_q, hp.n_embd), Cut.HEADS, Use.MUL_MAT)
    yield Weight(b + "attn_kv_a_mqa.weight", (a.n_lora_kv + a.n_rope, hp.n_embd), use=Use.MUL_MAT)
    yield Weight(b + "attn_kv_a_norm.weight", (a.n_lora_kv,))
    if a.is_absorbed:
        yield Weight(b + "attn_k_b.weight", (hp.n_head, a.n_lora_kv, a.n_nope), Cut.HEADS, Use.MUL_MAT)
        yield Weight(b + "attn_v_b.weight", (hp.n_head, a.head_dim_v, a.n_lora_kv), Cut.HEADS, Use.MUL_MAT)
    else:
        n_kv = hp.n_head * (a.n_nope + a.head_dim_v)
        yield Weight(b + "attn_kv_b.weight", (n_kv, a.n_lora_kv), Cut.HEADS, Use.MUL_MAT)
    yield Weight(b + "attn_output.weight", (hp.n_embd, hp.n_head * a.head_dim_v), Cut.HEADS_IN, Use.MUL_MAT)


def _latent(hp: HParams, keys: Keys) -> HParams:
    """Widths of attention. Files of older converters give those of whole heads only."""
    head_dim = keys.integer("attention.key_length_mla", 0, default=0)
    is_absorbed = head_dim > 0
    head_dim = head_dim or hp.head_dim
    head_dim_v = keys.integer("attention.value_length_mla", 1, default=hp.head_dim_v)
    n_rope = hp.rope.n_dims
    if n_rope >= head_dim:
        raise keys.refused("rope.dimension_count", n_rope, f"less than a head, which has {head_dim}")
    is_lite = hp.n_layer in (26, 27) or (hp.n_layer == 48 and hp.n_vocab == _N_VOCAB_KANANA)
    n_lora_q = 0 if is_lite else keys.integer("attention.q_lora_rank", 0, default=0)
    n_lora_kv = keys.integer("attention.kv_lora_rank", 1)
    if is_absorbed and (hp.n_head_kv, hp.head_dim, hp.head_dim_v) != (1, n_lora_kv + n_rope, n_lora_kv):
        raise keys.refused(
            "attention.key_length", hp.head_dim, f"{n_lora_kv + n_rope} with one key/value head"
        )
    latent = Latent(n_lora_q, n_lora_kv, head_dim - n_rope, n_rope, head_dim_v, is_absorbed)
    return _magnitudes(replace(hp, latent=latent), keys, head_dim)


def _magnitudes(hp: HParams, keys: Keys, head_dim: int) -> HParams:
    """YaRN's two magnitudes: one of the turned part of heads, one of the scores; converters wrote a tenth of theirs."""
    log_mul = keys.number("rope.scaling.yarn_log_multiplier", 0.0, default=0.0) / 0.1
    log_factor = math.log(1.0 / hp.rope.freq_scale)
    attn_factor = keys.number("rope.scaling.attn_factor", 0.0, default=1.0)
    if hp.rope.ext_factor and log_mul:
        attn_factor /= 1.0 + 0.1 * (log_mul if hp.arch == "mistral4" else 1.0) * log_factor
    scale = attn_factor * (1.0 + 0.1 * log_factor) * (1.0 + 0.1 * log_mul * log_factor)
    rope = replace(hp.rope, attn_factor=attn_factor)
    return replace(hp, rope=rope, rope_swa=rope, attn_scale=scale**2 * head_dim**-0.5)


def _experts(hp: HParams, keys: Keys) -> HParams:
    is_glm = hp.n_layer in (47, 48) and hp.n_vocab == _N_VOCAB_GLM_FLASH
    scale = keys.number("attention.temperature_scale", 0.0, default=0.0)
    return replace(
        hp,
        router=read_router(keys, hp.n_expert, kind="sigmoid" if is_glm else "softmax"),
        n_ff_shexp=hp.n_ff_exp * keys.integer("expert_shared_count", 0),
        temperature=Temperature(scale, keys.integer("attention.temperature_length", 1)) if scale else None,
    )


_numbers = numbers(dense_lead, _latent, _experts, neox=False)
_forward = partial(sequential, attend=latent_attention)

FAMILIES = {arch: Family(arch, _numbers, table, _forward) for arch in ("deepseek2", "mistral4")}
