"""OLMo 2 and 3 (`olmo2`), EXAONE 4: norms after attention and feed-forward and none before.

OLMo norms Q and K over all heads at once. OLMo 3 and EXAONE 4 32B have sliding windows in three layers of four;
OLMo's do not stretch positions, and EXAONE's other layers know none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..blocks.layers import POST, sequential
from ..hparams import HParams, with_windows
from ..keys import Keys
from ..weight_table import Weight, attention_rows, embedding_rows, feed_forward_rows, norm_rows
from .family import Family, numbers

_N_LAYER_EXAONE_32B = 64


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from attention_rows(hp, i, norm=None)
        yield from norm_rows(f"blk.{i}.post_attention_norm", hp.n_embd)
        yield from feed_forward_rows(hp, i)
        yield from norm_rows(f"blk.{i}.post_ffw_norm", hp.n_embd)


def _olmo(hp: HParams, keys: Keys) -> HParams:
    base = hp.rope.freq_base  # a base of the windowed layers' own is not used
    hp = with_windows(hp, keys, period=4, is_scaled=False)
    return replace(hp, rope_swa=replace(hp.rope_swa, freq_base=base), has_wide_qk_norm=True)


def _exaone(hp: HParams, keys: Keys) -> HParams:
    if hp.n_layer != _N_LAYER_EXAONE_32B:
        return hp
    hp = with_windows(hp, keys, period=4, n_swa=4096)
    return replace(hp, rope_swa=hp.rope, has_rope=hp.is_swa)


_forward = partial(sequential, norms=POST)

FAMILIES = {
    "olmo2": Family("olmo2", numbers(_olmo, neox=True), table, _forward),
    "exaone4": Family("exaone4", numbers(_exaone, neox=True), table, _forward),
}
