"""What a model is, read once from GGUF metadata into plain numbers.

Names are GGUF's. Knows nothing of tensors or devices. A family may replace fields that its files
leave to the reader (see engine/models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import ModelError, UnsupportedValue


@dataclass(frozen=True)
class Rope:
    """How positions turn the heads.

    `attn_factor` already allows for the 1 + 0.1 ln(factor) that ggml applies itself when
    `ext_factor` is not 0 (YaRN, https://arxiv.org/abs/2309.00071).
    """

    n_dims: int
    freq_base: float
    freq_scale: float = 1.0
    n_ctx_orig: int = 0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    neox: bool = False


@dataclass(frozen=True)
class HParams:
    """A model's numbers. `is_swa[i]` says whether layer i sees only the last `n_swa` positions."""

    arch: str
    n_layer: int
    n_ctx_train: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head_dim: int
    head_dim_v: int
    n_ff: int
    norm_eps: float
    rope: Rope
    rope_swa: Rope
    attn_scale: float
    n_swa: int = 0
    is_swa: tuple[bool, ...] = ()
    n_expert: int = 0
    n_expert_used: int = 0
    n_ff_exp: int = 0
    expert_weights_scale: float = 1.0
    embedding_scale: float = 1.0
    final_softcap: float = 0.0


class Keys:
    """The metadata of one file with the architecture's prefix added to keys that need it."""

    def __init__(self, metadata: Mapping[str, Any], arch: str) -> None:
        self.metadata = metadata
        self.arch = arch

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `{arch}.key`, or `default`."""
        return self.metadata.get(f"{self.arch}.{key}", default)

    def need(self, key: str) -> Any:
        """The value of `{arch}.key`; ModelError when the file lacks it."""
        value = self.get(key)
        if value is None:
            raise ModelError(f"the file lacks the key {self.arch}.{key}")
        return value

    def same(self, key: str, default: Any = None) -> Any:
        """A number that may be given layer by layer but must be the same in all."""
        value = self.get(key, default)
        if isinstance(value, (list, tuple, np.ndarray)):
            values = set(np.asarray(value).tolist())
            if len(values) != 1:
                raise UnsupportedValue(
                    f"{self.arch}.{key} differs from layer to layer ({sorted(values)}); one value is supported"
                )
            value = values.pop()
        return value


def _positive(name: str, value: Any) -> int:
    if value is None or int(value) <= 0:
        raise ModelError(f"{name} = {value}; it must be positive")
    return int(value)


def rope_from(keys: Keys, head_dim: int, *, neox: bool) -> Rope:
    """Read RoPE and its scaling (none, linear, yarn)."""
    kind = keys.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedValue(
            f"{keys.arch}.rope.scaling.type = {kind!r}; none, linear and yarn are supported"
        )
    factor = float(keys.get("rope.scaling.factor", keys.get("rope.scale_linear", 0.0)) or 1.0)
    factor = 1.0 if kind == "none" else factor
    ext_factor = float(keys.get("rope.scaling.yarn_ext_factor", 1.0 if kind == "yarn" else 0.0))
    attn_factor = float(keys.get("rope.scaling.attn_factor", 1.0))
    log_mul = float(keys.get("rope.scaling.yarn_log_multiplier", 0.0))
    if ext_factor and log_mul and factor > 1.0:
        # DeepSeek's two scales: their quotient replaces the magnitude that ggml applies.
        attn_factor *= 1.0 / (1.0 + 0.1 * log_mul * math.log(factor))
    return Rope(
        n_dims=int(keys.get("rope.dimension_count", head_dim)),
        freq_base=float(keys.get("rope.freq_base", 10000.0)),
        freq_scale=1.0 / factor,
        n_ctx_orig=int(keys.get("rope.scaling.original_context_length", keys.need("context_length"))),
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=float(keys.get("rope.scaling.yarn_beta_fast", 32.0)),
        beta_slow=float(keys.get("rope.scaling.yarn_beta_slow", 1.0)),
        neox=neox,
    )


def read_hparams(metadata: Mapping[str, Any], arch: str, *, n_vocab: int, neox: bool) -> HParams:
    """Read the numbers that all families share.

    `n_vocab` is the number of rows of the token embedding, which may exceed the tokenizer's list.
    Raises ModelError for a key that is missing or makes no sense.
    """
    keys = Keys(metadata, arch)
    n_embd = _positive("embedding_length", keys.need("embedding_length"))
    n_head = _positive("attention.head_count", keys.same("attention.head_count"))
    n_head_kv = _positive("attention.head_count_kv", keys.same("attention.head_count_kv", n_head))
    if n_head % n_head_kv:
        raise ModelError(f"attention.head_count = {n_head} is not a multiple of head_count_kv = {n_head_kv}")
    head_dim = _positive("attention.key_length", keys.get("attention.key_length", n_embd // n_head))
    n_layer = _positive("block_count", keys.need("block_count"))
    n_expert = int(keys.get("expert_count", 0))
    n_expert_used = int(keys.get("expert_used_count", 0))
    if n_expert and not 0 < n_expert_used <= n_expert:
        raise ModelError(f"expert_used_count = {n_expert_used}; it must be 1 to expert_count = {n_expert}")
    n_ff = int(keys.same("feed_forward_length", 0))
    rope = rope_from(keys, head_dim, neox=neox)
    return HParams(
        arch=arch,
        n_layer=n_layer,
        n_ctx_train=_positive("context_length", keys.need("context_length")),
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        head_dim_v=_positive("attention.value_length", keys.get("attention.value_length", n_embd // n_head)),
        n_ff=n_ff,
        norm_eps=float(keys.get("attention.layer_norm_rms_epsilon", 1e-5)),
        rope=rope,
        rope_swa=rope,
        attn_scale=float(keys.get("attention.scale", 0.0)) or head_dim**-0.5,
        is_swa=(False,) * n_layer,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_exp=int(keys.same("expert_feed_forward_length", 0)) or n_ff,
        expert_weights_scale=float(keys.get("expert_weights_scale", 0.0)) or 1.0,
    )
