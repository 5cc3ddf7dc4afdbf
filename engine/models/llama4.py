"""Llama 4: attention in stretches of 8192 in three layers of four, experts that weigh their inputs in every so many.

The other layers know no positions, and their queries grow with them instead. Q and K are normed without weights after
their rotation, except in the model of 128 experts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pyggml as gg

from ..blocks.attention import attention, rotate
from ..blocks.layers import sequential
from ..forward import Forward
from ..hparams import HParams, Router, Temperature, with_windows
from ..keys import Keys
from .family import Family, numbers
from .llama import table
from .mixture import every_so_many

_CHUNK = 8192
_N_EXPERT_WITHOUT_NORMS = 128


def _place(f: Forward, i: int, q: gg.Tensor, k: gg.Tensor) -> tuple[gg.Tensor, gg.Tensor]:
    hp = f.hp
    if not hp.is_rotary(i):
        return q * f.temperature(), k
    q, k = rotate(f, i, q), rotate(f, i, k)
    if hp.n_expert == _N_EXPERT_WITHOUT_NORMS:
        return q, k
    return gg.rms_norm(q, hp.norm_eps), gg.rms_norm(k, hp.norm_eps)


def _chunks(hp: HParams, keys: Keys) -> HParams:
    """Stretches of 8192, whatever window the file has."""
    hp = with_windows(hp, keys, period=4, n_swa=_CHUNK)
    if not hp.n_swa:
        raise keys.refused("attention.sliding_window", 0, "above 0")
    return replace(
        hp,
        n_swa=_CHUNK,
        is_chunked=True,
        has_rope=tuple((i + 1) % 4 != 0 for i in range(hp.n_layer)),
        temperature=Temperature(0.1, _CHUNK, 1.0),
    )


def _experts(hp: HParams, keys: Keys) -> HParams:
    return replace(hp, router=Router("sigmoid", normalise=False, weighs_inputs=True), n_ff_shexp=hp.n_ff_exp)


FAMILIES = {
    "llama4": Family(
        "llama4",
        numbers(every_so_many, _experts, _chunks, neox=False),
        table,
        partial(sequential, attend=partial(attention, place=_place)),
    )
}
