"""What a model family has to say: its numbers, its table of weights, its graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyggml as gg

from ..forward import Forward
from ..hparams import HParams
from ..weight_table import Weight


@dataclass(frozen=True)
class Family:
    """One architecture.

    `hparams(metadata, arch, n_vocab)` reads its numbers, `table(hp)` yields its weights,
    `forward(f)` builds a pass and returns the logits, or None where the plan wants none.
    `unused` are endings of tensor names that files carry and inference does not need.
    """

    arch: str
    hparams: Callable[[Mapping[str, Any], str, int], HParams]
    table: Callable[[HParams], Iterable[Weight]]
    forward: Callable[[Forward], gg.Tensor | None]
    unused: tuple[str, ...] = ("attn_rot_embd.weight", "rope.freqs")
