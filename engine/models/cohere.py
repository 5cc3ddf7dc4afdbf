"""Command R and R+ (`command-r`) and Command R7B, A (`cohere2`): layer norms, attention and feed-forward side by side.

Cohere 2 has sliding windows in three layers of four, and positions in those only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..blocks.layers import parallel
from ..hparams import HParams, with_windows
from ..keys import ABOVE_0, Keys
from ..weight_table import Weight, attention_rows, embedding_rows, feed_forward_rows
from .family import Family, numbers


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from attention_rows(hp, i, has_own_qk_norms=True)
        yield from feed_forward_rows(hp, i)


def _scaled(hp: HParams, keys: Keys) -> HParams:
    return replace(hp, logit_scale=keys.number("logit_scale", ABOVE_0, default=1.0))


def _positions_in_windows(hp: HParams, keys: Keys) -> HParams:
    hp = with_windows(hp, keys, period=4)
    local = hp.rope  # a base of its own is not used
    return replace(hp, rope_swa=local, has_rope=hp.is_swa)


FAMILIES = {
    "command-r": Family("command-r", numbers(_scaled, neox=False, is_layer_norm=True), table, parallel),
    "cohere2": Family(
        "cohere2", numbers(_scaled, _positions_in_windows, neox=False, is_layer_norm=True), table, parallel
    ),
}
