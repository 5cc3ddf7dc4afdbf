"""Muse Glimmer: norms around each part, gated attention, positions in windowed layers only, capped logits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyggml as gg

from ..blocks.layers import AROUND, sequential
from ..forward import Forward
from ..hparams import HParams, with_windows
from ..keys import ABOVE_0, Keys
from ..weight_table import Cut, Use, Weight, scale_rows
from . import gemma
from .family import Family, numbers

_NORMS = replace(AROUND, post_eps=1e-8)


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from gemma.table(hp)
    for i in range(hp.n_layer):
        shape = (hp.n_head * hp.head_dim, hp.n_embd)
        yield Weight(f"blk.{i}.attn_gate.weight", shape, Cut.HEADS, Use.MUL_MAT)
        yield from scale_rows(f"blk.{i}.attn_gate")


def forward(f: Forward) -> gg.Tensor | None:
    """From normed embeddings on."""
    x = f.enter()
    return sequential(f, norms=_NORMS, x=gg.rms_norm(x, f.hp.norm_eps) if f.is_first else x)


def _numbers(hp: HParams, keys: Keys) -> HParams:
    hp = with_windows(hp, keys, period=4)
    return replace(
        hp,
        has_rope=hp.is_swa,
        rope_swa=replace(hp.rope_swa, freq_scale=1.0),
        logit_scale=keys.number("logit_scale", ABOVE_0),
        final_softcap=keys.number("final_logit_softcapping", 0.0, default=30.0),
    )


FAMILIES = {"muse-glimmer": Family("muse-glimmer", numbers(_numbers, neox=False), table, forward)}
