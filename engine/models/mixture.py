"""Llama's layers with experts in other ways: other routers, a shared expert, dense layers first.

Qwen 2 with experts (a gated shared expert), OLMoE and MiniMax M2 (norms of Q and K over all heads), ERNIE 4.5,
Ling 2 (`bailingmoe2`), dots.llm1, Hunyuan with experts (norms of Q and K after their rotation).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..blocks.attention import attention, rope_then_norm
from ..blocks.layers import sequential
from ..hparams import HParams, read_router
from ..keys import Keys
from .family import Change, Family, numbers
from .llama import table


def router(*, normalise: bool | None = None) -> Change:
    """Experts chosen as the file says; `normalise` None: their weights too."""
    return lambda hp, keys: replace(hp, router=read_router(keys, hp.n_expert, normalise=normalise))


def dense_lead(hp: HParams, keys: Keys) -> HParams:
    """The first layers are dense."""
    n_lead = keys.integer("leading_dense_block_count", 0, default=0)
    return replace(hp, is_dense=tuple(i < n_lead for i in range(hp.n_layer)))


def every_so_many(hp: HParams, keys: Keys) -> HParams:
    """The first layers are dense, and of the others all but every so many."""
    hp, step = dense_lead(hp, keys), keys.integer("interleave_moe_layer_step", 1)
    return replace(hp, is_dense=tuple(dense or (i + 1) % step != 0 for i, dense in enumerate(hp.is_dense)))


def wide_qk_norm(hp: HParams, keys: Keys) -> HParams:
    """Q and K are normed over all heads at once."""
    return replace(hp, has_wide_qk_norm=True)


def _shared(hp: HParams, keys: Keys, *, default: str = "") -> HParams:
    """A shared expert as wide as the file says, else as the dense layers ("n_ff") or as one expert ("n_ff_exp")."""
    width = keys.integer("expert_shared_feed_forward_length", 0, default=0)
    return replace(hp, n_ff_shexp=width or (getattr(hp, default) if default else 0))


def _shared_experts(hp: HParams, keys: Keys) -> HParams:
    """So many shared experts in one."""
    hp = _shared(hp, keys, default="n_ff_exp")
    return replace(hp, n_ff_shexp=hp.n_ff_shexp * keys.integer("expert_shared_count", 0))


def _narrow(hp: HParams, keys: Keys) -> HParams:
    """Experts that together are as wide as a dense layer, where the file does not say how wide they are."""
    is_given = keys.get("expert_feed_forward_length") is not None
    return hp if is_given or not hp.n_expert else replace(hp, n_ff_exp=hp.n_ff // hp.n_expert_used)


_hunyuan = partial(sequential, attend=partial(attention, place=rope_then_norm))
_AS_DENSE = partial(_shared, default="n_ff")

FAMILIES = {
    family.arch: family
    for family in (
        Family(
            "qwen2moe", numbers(router(normalise=False), _narrow, _AS_DENSE, neox=True), table, sequential
        ),
        Family("olmoe", numbers(router(normalise=False), wide_qk_norm, neox=True), table, sequential),
        Family("minimax-m2", numbers(router(normalise=True), wide_qk_norm, neox=True), table, sequential),
        Family("ernie4_5-moe", numbers(every_so_many, _shared, neox=False), table, sequential),
        Family("bailingmoe2", numbers(dense_lead, router(), _shared_experts, neox=True), table, sequential),
        Family("dots1", numbers(dense_lead, router(), _shared_experts, neox=True), table, sequential),
        Family("hunyuan-moe", numbers(_AS_DENSE, neox=True), table, _hunyuan),
    )
}
