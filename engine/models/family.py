"""What a model family has to say: its numbers, its table of weights, its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyggml as gg

from ..forward import Forward
from ..hparams import HParams, read_hparams
from ..keys import Keys
from ..weight_table import Weight

Read = Callable[[Mapping[str, Any], str, int], HParams]
Change = Callable[[HParams, Keys], HParams]


@dataclass(frozen=True)
class Family:
    """One architecture.

    `hparams(metadata, arch, n_vocab)` reads its numbers, `table(hp)` yields its weights,
    `forward(f)` builds a pass and returns the logits, or None where the plan wants none.
    `unused` are endings of tensor names that files carry and inference does not need.
    """

    arch: str
    hparams: Read
    table: Callable[[HParams], Iterable[Weight]]
    forward: Callable[[Forward], gg.Tensor | None]
    unused: tuple[str, ...] = ("attn_rot_embd.weight", "rope.freqs", ".input_scale")


def numbers(*changes: Change, neox: bool, is_layer_norm: bool = False) -> Read:
    """A reader of what all families share, changed one step after another by what is special to one."""

    def hparams(metadata: Mapping[str, Any], arch: str, n_vocab: int) -> HParams:
        hp = read_hparams(metadata, arch, n_vocab=n_vocab, neox=neox, is_layer_norm=is_layer_norm)
        keys = Keys(metadata, arch)
        for change in changes:
            hp = change(hp, keys)
        return hp

    return hparams
