"""Granite 3 and 4 without state: Llama's layers with scaled embeddings, residuals and logits, dense or with experts."""

from __future__ import annotations

from dataclasses import replace

from ..blocks.layers import sequential
from ..hparams import HParams
from ..keys import ABOVE_0, Keys
from .family import Family, numbers
from .llama import table


def _scales(hp: HParams, keys: Keys) -> HParams:
    is_rotary = hp.arch == "granitemoe" or bool(keys.get("rope.scaling.finetuned", True))
    return replace(
        hp,
        logit_scale=1.0 / keys.number("logit_scale", ABOVE_0),
        residual_scale=keys.number("residual_scale", 0.0, default=0.0) or 1.0,
        embedding_scale=keys.number("embedding_scale", 0.0, default=0.0) or 1.0,
        n_ff_shexp=keys.integer("expert_shared_feed_forward_length", 0, default=0),
        has_rope=() if is_rotary else (False,) * hp.n_layer,
    )


FAMILIES = {
    arch: Family(arch, numbers(_scales, neox=False), table, sequential) for arch in ("granite", "granitemoe")
}
