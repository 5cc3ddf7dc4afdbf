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

MAX_INT = 2**31 - 1  # ggml's sizes of heads and its positions are 32-bit
MAX_FLOAT = float(np.finfo(np.float32).max)
ABOVE_0 = float(np.finfo(np.float32).tiny)
MAX_LAYERS = 4096


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

    def same(self, key: str) -> Any:
        """A number that may be given layer by layer but must be the same in all; None when the file lacks it."""
        value = self.get(key)
        if isinstance(value, (list, tuple, np.ndarray)):
            values = set(np.asarray(value).ravel().tolist())
            if not values:
                raise self.refused(key, "[]", "one value, or one a layer")
            if len(values) != 1:
                raise UnsupportedValue(
                    f"{self.arch}.{key} differs from layer to layer ({_shown(sorted(values))}); one value is supported"
                )
            value = values.pop()
        return value

    def integer(
        self, key: str, low: int, high: int = MAX_INT, default: int | None = None, *, by_layer: bool = False
    ) -> int:
        """The whole number of `{arch}.key`, or `default`, which must lie within the limits too.

        With `by_layer` the file may give it layer by layer. Raises ModelError with the value and the limits,
        also where the file lacks a key that has no default.
        """
        value = self._given(self.same(key) if by_layer else self.get(key), key, default)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
            raise self.refused(key, value, f"a whole number, {low} to {high}")
        return int(value)

    def number(self, key: str, low: float, high: float = MAX_FLOAT, default: float | None = None) -> float:
        """The finite number of `{arch}.key`, or `default`; the limits include both ends.

        Raises ModelError with the value and the limits, also where the file lacks a key that has no default.
        """
        value = self._given(self.get(key), key, default)
        is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high:
            least = ", above 0" if low == ABOVE_0 else "" if low == -MAX_FLOAT else f", at least {low:g}"
            limits = least if high == MAX_FLOAT else f", {low:g} to {high:g}"
            raise self.refused(key, value, f"a finite number{limits}")
        return float(value)

    def refused(self, key: str, value: Any, needed: str) -> ModelError:
        """The error that tells the key, its value and what would work."""
        return ModelError(f"{self.arch}.{key} = {_shown(value)}; it must be {needed}")

    def _given(self, value: Any, key: str, default: Any) -> Any:
        if value is None and default is None:
            raise ModelError(f"the file lacks the key {self.arch}.{key}")
        return default if value is None else value


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def rope_from(keys: Keys, head_dim: int, *, neox: bool) -> Rope:
    """Read RoPE and its scaling (none, linear, yarn). Raises ModelError for values that make no sense."""
    kind = keys.get("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn"):
        raise UnsupportedValue(
            f"{keys.arch}.rope.scaling.type = {_shown(kind)}; none, linear and yarn are supported"
        )
    n_dims = keys.integer("rope.dimension_count", 2, head_dim, head_dim)
    if n_dims % 2:
        raise keys.refused("rope.dimension_count", n_dims, f"an even number, 2 to {head_dim}")
    # As llama.cpp reads them: a factor of 0 is none, a negative ext_factor and a length of 0 are not set.
    factor_key = "rope.scaling.factor" if keys.get("rope.scaling.factor") is not None else "rope.scale_linear"
    factor = 1.0 if kind == "none" else keys.number(factor_key, 0.0, default=0.0) or 1.0
    ext_factor = keys.number("rope.scaling.yarn_ext_factor", -MAX_FLOAT, default=-1.0)
    if ext_factor < 0:
        ext_factor = 1.0 if kind == "yarn" else 0.0
    attn_factor = keys.number("rope.scaling.attn_factor", ABOVE_0, default=1.0)
    log_mul = keys.number("rope.scaling.yarn_log_multiplier", 0.0, default=0.0)
    if ext_factor and log_mul and factor > 1.0:
        # DeepSeek's two scales: their quotient replaces the magnitude that ggml applies.
        attn_factor *= 1.0 / (1.0 + 0.1 * log_mul * math.log(factor))
    n_ctx_train = keys.integer("context_length", 1)
    return Rope(
        n_dims=n_dims,
        freq_base=keys.number("rope.freq_base", ABOVE_0, default=10000.0),
        freq_scale=1.0 / factor,
        n_ctx_orig=keys.integer("rope.scaling.original_context_length", 0, default=0) or n_ctx_train,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", ABOVE_0, default=32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", ABOVE_0, default=1.0),
        neox=neox,
    )


def read_hparams(metadata: Mapping[str, Any], arch: str, *, n_vocab: int, neox: bool) -> HParams:
    """Read the numbers that all families share.

    `n_vocab` is the number of rows of the token embedding, which may exceed the tokenizer's list.
    Raises ModelError for a key that is missing or makes no sense.
    """
    keys = Keys(metadata, arch)
    n_embd = keys.integer("embedding_length", 1)
    n_head = keys.integer("attention.head_count", 1, n_embd, by_layer=True)
    n_head_kv = keys.integer("attention.head_count_kv", 1, n_head, n_head, by_layer=True)
    if n_head % n_head_kv:
        raise keys.refused("attention.head_count_kv", n_head_kv, f"a divisor of head_count = {n_head}")
    head_dim = keys.integer("attention.key_length", 1, default=n_embd // n_head)
    n_layer = keys.integer("block_count", 1, MAX_LAYERS)
    n_expert = keys.integer("expert_count", 0, default=0)
    n_expert_used = keys.integer("expert_used_count", 1, n_expert) if n_expert else 0
    n_ff_exp = keys.integer("expert_feed_forward_length", 0, default=0, by_layer=True)
    if n_expert and n_ff_exp:
        n_ff = keys.integer("feed_forward_length", 0, default=0, by_layer=True)
    else:
        n_ff = keys.integer("feed_forward_length", 1, by_layer=True)
    rope = rope_from(keys, head_dim, neox=neox)
    return HParams(
        arch=arch,
        n_layer=n_layer,
        n_ctx_train=keys.integer("context_length", 1),
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        head_dim_v=keys.integer("attention.value_length", 1, default=n_embd // n_head),
        n_ff=n_ff,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon", 0.0, default=1e-5),
        rope=rope,
        rope_swa=rope,
        attn_scale=keys.number("attention.scale", 0.0, default=0.0) or head_dim**-0.5,
        is_swa=(False,) * n_layer,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_exp=n_ff_exp or n_ff,
        expert_weights_scale=keys.number("expert_weights_scale", 0.0, default=0.0) or 1.0,
    )
