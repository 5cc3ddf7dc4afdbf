"""Llama and its close relatives: pre-norm, rotary attention, gated SiLU or experts.

Llama 1 to 3.x, Mistral 7B and Mixtral (`llama`), Qwen 2 (biases on Q, K, V), Qwen 3 (norms on Q and
K), Qwen 3 with experts. They differ by which optional weights are in the file and by the pairing of
rotary dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pyggml as gg

from ..blocks.attention import attention
from ..blocks.experts import experts
from ..blocks.feed_forward import feed_forward
from ..forward import Forward
from ..hparams import HParams, read_hparams
from ..weight_table import Weight, embedding_rows, layer_rows
from .family import Family


def table(hp: HParams) -> Iterator[Weight]:
    """Every weight of the model."""
    yield from embedding_rows(hp)
    for i in range(hp.n_layer):
        yield from layer_rows(hp, i)


def forward(f: Forward) -> gg.Tensor | None:
    """Attend and feed forward layer by layer."""
    x = f.enter()
    for i in f.layers:
        seen = attention(f, i, f.norm(x, f"blk.{i}.attn_norm"))
        if seen is None:
            return None
        if i == f.hp.n_layer - 1:
            seen, x = f.pick(seen), f.pick(x)
        x = seen + x
        hidden = f.norm(x, f"blk.{i}.ffn_norm")
        x = (experts(f, i, hidden) if f.hp.n_expert else feed_forward(f, i, hidden)) + x
    return f.leave(x)


def _hparams(metadata: Mapping[str, Any], arch: str, n_vocab: int, *, neox: bool) -> HParams:
    return read_hparams(metadata, arch, n_vocab=n_vocab, neox=neox)


FAMILIES = {
    arch: Family(arch, partial(_hparams, neox=neox), table, forward)
    for arch, neox in (("llama", False), ("qwen2", True), ("qwen3", True), ("qwen3moe", True))
}
