"""Gemma 1 to 3: GELU gates, scaled embeddings; from 2 on norms before and after each part and sliding windows.

Files leave to the reader: Gemma 2's window and its period of 2, Gemma 3's period of 6 and rotary base of 10,000 in
windowed layers, and the 27B models' attention scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyggml as gg

from ..blocks.feed_forward import feed_forward
from ..blocks.layers import AROUND, sequential
from ..hparams import HParams, with_windows
from ..keys import Keys
from ..weight_table import Weight, norm_rows
from . import llama
from .family import Family, numbers

_N_LAYER_27B = {"gemma2": 46, "gemma3": 62}
_feed = partial(feed_forward, gate=gg.geglu)


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model: Llama's and a norm after each part."""
    yield from llama.table(hp)
    for i in range(hp.n_layer):
        yield from norm_rows(f"blk.{i}.post_attention_norm", hp.n_embd)
        yield from norm_rows(f"blk.{i}.post_ffw_norm", hp.n_embd)


def _scaled(hp: HParams, keys: Keys) -> HParams:
    is_27b = hp.n_layer == _N_LAYER_27B.get(hp.arch)
    per_head = hp.n_embd // hp.n_head if is_27b else hp.head_dim
    return replace(hp, attn_scale=per_head**-0.5, embedding_scale=hp.n_embd**0.5)


def _capped(hp: HParams, keys: Keys, *, attention: float, final: float) -> HParams:
    """Limits of attention's scores and of the logits, with what holds where the file lacks them."""
    return replace(
        hp,
        attn_softcap=keys.number("attn_logit_softcapping", 0.0, default=attention) if attention else 0.0,
        final_softcap=keys.number("final_logit_softcapping", 0.0, default=final),
    )


_GEMMA2 = (_scaled, partial(with_windows, period=2, n_swa=4096), partial(_capped, attention=50.0, final=30.0))
_GEMMA3 = (
    _scaled,
    partial(with_windows, period=6, freq_base=10000.0, is_scaled=False),
    partial(_capped, attention=0.0, final=0.0),
)

FAMILIES = {
    "gemma": Family("gemma", numbers(_scaled, neox=True), llama.table, partial(sequential, feed=_feed)),
    "gemma2": Family(
        "gemma2", numbers(*_GEMMA2, neox=True), table, partial(sequential, norms=AROUND, feed=_feed)
    ),
    "gemma3": Family(
        "gemma3", numbers(*_GEMMA3, neox=True), table, partial(sequential, norms=AROUND, feed=_feed)
    ),
}
