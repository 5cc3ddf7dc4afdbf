"""Llama and its close relatives: pre-norm, rotary attention, gated SiLU or experts.

Llama 1 to 3.x, Mistral 7B and Mixtral (`llama`), Qwen 2 (biases on Q, K, V), Qwen 3 (norms on Q and
K), Qwen 3 with experts, Mistral 3 (queries that grow with the position), SmolLM 3 (every fourth layer without
positions), Seed-OSS, InternLM 2, Phi 3 and 4 (Q, K, V in one tensor, gate and up too), Hunyuan (norms of Q and K
after their rotation). They differ by which optional weights are in the file, by the pairing of
rotary dimensions, and by the numbers below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..blocks.attention import attention, rope_then_norm
from ..blocks.layers import Norms, sequential
from ..hparams import HParams, Temperature
from ..keys import ABOVE_0, MAX_FLOAT, Keys
from ..weight_table import Weight, embedding_rows, layer_rows
from .family import Family, numbers


def table(hp: HParams, ffn_norm: str = "ffn_norm") -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from layer_rows(hp, i, ffn_norm=ffn_norm)


def _temperature(hp: HParams, keys: Keys) -> HParams:
    scale = keys.number("attention.temperature_scale", 0.0, default=0.0)
    return replace(hp, temperature=Temperature(scale, hp.rope.n_ctx_orig) if scale else None)


def _every_fourth_without_positions(hp: HParams, keys: Keys) -> HParams:
    return replace(hp, has_rope=tuple((i + 1) % 4 != 0 for i in range(hp.n_layer)))


def _stretched_base(hp: HParams, keys: Keys) -> HParams:
    """A longer context by a larger base (NTK)."""
    alpha = keys.number("rope.scaling.alpha", 0.0, default=0.0)
    if not alpha or hp.head_dim <= 2:
        return hp
    base = hp.rope.freq_base * alpha ** (hp.head_dim / (hp.head_dim - 2))
    if not ABOVE_0 <= base <= MAX_FLOAT:
        raise keys.refused("rope.scaling.alpha", alpha, f"such that the base becomes a float32, not {base:g}")
    rope = replace(hp.rope, freq_base=base)
    return replace(hp, rope=rope, rope_swa=rope)


_NORM_BEFORE_FFN = "post_attention_norm"
_hunyuan = partial(sequential, attend=partial(attention, place=rope_then_norm))

FAMILIES = {
    family.arch: family
    for family in (
        Family("llama", numbers(neox=False), table, sequential),
        Family("qwen2", numbers(neox=True), table, sequential),
        Family("qwen3", numbers(neox=True), table, sequential),
        Family("qwen3moe", numbers(neox=True), table, sequential),
        Family("mistral3", numbers(_temperature, neox=False), table, sequential),
        Family("smollm3", numbers(_every_fourth_without_positions, neox=False), table, sequential),
        Family("internlm2", numbers(neox=False), table, sequential),
        Family("phi3", numbers(neox=True), table, sequential),
        Family("hunyuan-dense", numbers(_stretched_base, neox=True), table, _hunyuan),
        Family(
            "seed_oss",
            numbers(neox=True),
            partial(table, ffn_norm=_NORM_BEFORE_FFN),
            partial(sequential, norms=Norms(feed_forward=_NORM_BEFORE_FFN)),
        ),
    )
}
