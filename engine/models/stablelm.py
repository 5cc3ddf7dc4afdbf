"""Families with layer norms that have biases: StableLM, StarCoder 2, Nemotron.

StableLM 2 12B has attention and feed-forward side by side; its files then lack the norm between them. StarCoder's
feed-forward has GELU and no gate, Nemotron's a squared ReLU.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyggml as gg

from ..blocks.feed_forward import feed_forward, squared_relu
from ..blocks.layers import parallel, sequential
from ..forward import Forward
from ..hparams import HParams
from ..weight_table import Weight, attention_rows, embedding_rows, feed_forward_rows, norm_rows
from .family import Family, numbers


def table(hp: HParams, *, has_gate: bool = False) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from attention_rows(hp, i, has_own_qk_norms=has_gate)
        yield from norm_rows(f"blk.{i}.ffn_norm", hp.n_embd, optional=has_gate)
        yield from feed_forward_rows(hp, i, has_gate=has_gate)


def forward(f: Forward) -> gg.Tensor | None:
    """StableLM: side by side where there is no norm between attention and feed-forward."""
    has_norm = f.maybe(f"blk.{f.layers.start}.ffn_norm.weight") is not None
    return (sequential if has_norm else parallel)(f)


_numbers = numbers(neox=True, is_layer_norm=True)

FAMILIES = {
    "stablelm": Family("stablelm", _numbers, partial(table, has_gate=True), forward),
    "starcoder2": Family(
        "starcoder2", _numbers, table, partial(sequential, feed=partial(feed_forward, gate=gg.gelu))
    ),
    "nemotron": Family(
        "nemotron", _numbers, table, partial(sequential, feed=partial(feed_forward, gate=squared_relu))
    ),
}
