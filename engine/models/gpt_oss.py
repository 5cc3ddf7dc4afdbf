"""gpt-oss: attention with sinks and windows in every other layer, experts with biases and limited gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyggml as gg

from ..blocks.experts import experts
from ..blocks.layers import Norms, sequential
from ..hparams import HParams, Router, with_windows
from ..keys import Keys
from ..weight_table import Cut, Weight
from . import llama
from .family import Family, numbers

_NORM_BEFORE_FFN = "post_attention_norm"


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from llama.table(hp, ffn_norm=_NORM_BEFORE_FFN)
    for i in range(hp.n_layer):
        yield Weight(f"blk.{i}.attn_sinks.weight", (hp.n_head,), Cut.HEADS)


def _chosen(hp: HParams, keys: Keys) -> HParams:
    return replace(hp, router=Router("chosen", normalise=False))


_forward = partial(
    sequential, norms=Norms(feed_forward=_NORM_BEFORE_FFN), feed=partial(experts, gate=gg.swiglu_oai)
)

FAMILIES = {
    "gpt-oss": Family(
        "gpt-oss", numbers(_chosen, partial(with_windows, period=2), neox=True), table, _forward
    )
}
