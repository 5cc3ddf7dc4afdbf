"""Gemma 3: norms before and after each part, sliding windows in five layers of six, GELU gates.

Files leave three things to the reader: the pattern of windowed layers, their rotary base of 10,000,
and the 27B's attention scale.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

import pyggml as gg

from ..blocks.attention import attention
from ..blocks.feed_forward import feed_forward
from ..forward import Forward
from ..hparams import ABOVE_0, HParams, Keys, read_hparams
from ..weight_table import Weight, embedding_rows, layer_rows
from .family import Family

_N_LAYER_27B = 62


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from layer_rows(hp, i)
        yield Weight(f"blk.{i}.post_attention_norm.weight", (hp.n_embd,))
        yield Weight(f"blk.{i}.post_ffw_norm.weight", (hp.n_embd,))


def forward(f: Forward) -> gg.Tensor | None:
    """As Llama's, with a norm after each part and before its sum."""
    x = f.enter()
    for i in f.layers:
        b = f"blk.{i}."
        seen = attention(f, i, f.norm(x, b + "attn_norm"))
        if seen is None:
            return None
        if i == f.hp.n_layer - 1:
            seen, x = f.pick(seen), f.pick(x)
        x = f.norm(seen, b + "post_attention_norm") + x
        hidden = feed_forward(f, i, f.norm(x, b + "ffn_norm"), gg.geglu)
        x = f.norm(hidden, b + "post_ffw_norm") + x
    return f.leave(x)


def _gemma3(metadata: Mapping[str, Any], arch: str, n_vocab: int) -> HParams:
    hp = read_hparams(metadata, arch, n_vocab=n_vocab, neox=True)
    keys = Keys(metadata, arch)
    n_swa = keys.integer("attention.sliding_window", 0, default=0)
    is_swa = _windowed_layers(keys, hp.n_layer)
    base = keys.number("rope.freq_base_swa", ABOVE_0, default=10000.0)
    local = replace(hp.rope, freq_base=base, freq_scale=1.0)
    per_head = hp.n_embd // hp.n_head if hp.n_layer == _N_LAYER_27B else hp.head_dim
    return replace(
        hp,
        n_swa=n_swa,
        is_swa=is_swa if n_swa else (False,) * hp.n_layer,
        rope_swa=local,
        attn_scale=per_head**-0.5,
        embedding_scale=hp.n_embd**0.5,
        final_softcap=keys.number("final_logit_softcapping", 0.0, default=0.0),
    )


def _windowed_layers(keys: Keys, n_layer: int) -> tuple[bool, ...]:
    """Which layers have a window: as listed, or all but the last of every so many."""
    key = "attention.sliding_window_pattern"
    pattern = keys.get(key, 6)
    if isinstance(pattern, (list, np.ndarray)):
        listed = np.asarray(pattern)
        if listed.shape != (n_layer,) or not np.isin(listed, (0, 1)).all():
            raise keys.refused(key, pattern, f"a whole number or {n_layer} truth values, one a layer")
        return tuple(listed.astype(bool).tolist())
    period = keys.integer(key, 1, default=6)
    return tuple(i % period < period - 1 for i in range(n_layer))


FAMILIES = {"gemma3": Family("gemma3", _gemma3, table, forward)}
