"""What a model is, read once from GGUF metadata into plain numbers.

Names are GGUF's. Knows nothing of tensors or devices. A family may replace fields that its files
leave to the reader (see engine/models).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .errors import UnsupportedValue
from .keys import ABOVE_0, MAX_FLOAT, Keys, shown

MAX_LAYERS = 4096
GATING = {1: "softmax", 2: "sigmoid", 3: "chosen"}  # GGUF's numbers


@dataclass(frozen=True)
class Rope:
    """How positions turn the heads.

    `has_factors`: with the file's divisors of the frequencies, if it has some. `attn_factor` already allows for the
    1 + 0.1 ln(factor) that ggml applies itself when `ext_factor` is not 0 (YaRN, https://arxiv.org/abs/2309.00071).
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
    has_factors: bool = True


@dataclass(frozen=True)
class Temperature:
    """Queries grow with their position: times 1 + scale * ln(1 + floor((position + offset) / length))."""

    scale: float
    length: float
    offset: float = 0.0


@dataclass(frozen=True)
class Router:
    """How a token's experts are chosen and weighed.

    `kind` makes probabilities of the router's logits: "softmax", "sigmoid", or "chosen", a softmax over the
    chosen ones alone. With groups, experts come from the `n_group_used` best of `n_group` equal groups only.
    `normalise` makes the weights of the chosen ones sum to one. `weighs_inputs`: weights are for the experts'
    inputs, not their outputs.
    """

    kind: str = "softmax"
    normalise: bool = True
    n_group: int = 1
    n_group_used: int = 1
    weighs_inputs: bool = False


@dataclass(frozen=True)
class Latent:
    """Latent attention (https://arxiv.org/abs/2405.04434): widths of what is projected twice, and of single heads.

    K and V of a position are one vector of `n_lora_kv` and a part of `n_rope` that is turned by position. A head
    of Q has `n_nope` and `n_rope` elements, one of V `head_dim_v`. `n_lora_q` 0: Q is projected once. `is_absorbed`:
    the cache holds that vector alone; else whole heads, as files of older converters need.
    """

    n_lora_q: int
    n_lora_kv: int
    n_nope: int
    n_rope: int
    head_dim_v: int
    is_absorbed: bool


@dataclass(frozen=True)
class Heads:
    """Key/value heads of a layer, and the sizes of heads in Q and K, and in V."""

    n_head_kv: int
    head_dim: int
    head_dim_v: int


@dataclass(frozen=True)
class HParams:
    """A model's numbers.

    `is_swa[i]` says whether layer i sees only the last `n_swa` positions, or with `is_chunked` those of its own
    stretch of `n_swa`. Tuples that are empty hold for no layer, `has_rope` for all. Layers after the first
    `n_layer` (`n_layer_nextn` of them) predict further tokens and are not used. Layers from `n_layer_kv` on, if it is
    not 0, have no K and V of their own.
    """

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
    n_layer_nextn: int = 0
    is_layer_norm: bool = False
    is_chunked: bool = False
    has_rope: tuple[bool, ...] = ()
    has_wide_qk_norm: bool = False
    attn_softcap: float = 0.0
    temperature: Temperature | None = None
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    router: Router = Router()
    n_ff_shexp: int = 0
    is_dense: tuple[bool, ...] = ()
    latent: Latent | None = None
    heads_swa: Heads | None = None
    n_layer_kv: int = 0
    n_ffs: tuple[int, ...] = ()
    n_embd_per_layer: int = 0

    def n_ff_of(self, i: int) -> int:
        """The width of the dense feed-forward of layer i."""
        return self.n_ffs[i] if self.n_ffs else self.n_ff

    def heads(self, i: int) -> Heads:
        """The heads of layer i, which with a window may have other ones."""
        if self.heads_swa is not None and self.is_swa[i]:
            return self.heads_swa
        return Heads(self.n_head_kv, self.head_dim, self.head_dim_v)

    def kv_layer(self, i: int) -> int:
        """The layer whose K and V layer i attends to: its own, or the last of its kind that has any."""
        if not self.n_layer_kv or i < self.n_layer_kv:
            return i
        return next(j for j in range(self.n_layer_kv - 1, -1, -1) if self.is_swa[j] == self.is_swa[i])

    def has_experts(self, i: int) -> bool:
        """Whether the feed-forward of layer i is one of experts."""
        return self.n_expert > 0 and not (self.is_dense and self.is_dense[i])

    @property
    def has_v_cache(self) -> bool:
        """Whether V has tables of its own in the cache; else it is the first part of K."""
        return self.latent is None or not self.latent.is_absorbed

    @property
    def split_obstacle(self) -> str:
        """Why layers cannot lie on different devices, "" where they can."""
        if self.n_embd_per_layer:
            return "each layer needs what the embedding on the first device says of the token"
        return "the last layers attend to keys and values of earlier ones" if self.n_layer_kv else ""

    def is_rotary(self, i: int) -> bool:
        """Whether layer i turns its heads by position."""
        return not self.has_rope or self.has_rope[i]


def rope_from(keys: Keys, head_dim: int, *, neox: bool) -> Rope:
    """Read RoPE and its scaling (none, linear, yarn, longrope). Raises ModelError for values that make no sense."""
    kind = keys.get("rope.scaling.type", "linear")
    if not isinstance(kind, str) or kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedValue(
            f"{keys.arch}.rope.scaling.type = {shown(kind)}; none, linear, yarn and longrope are supported"
        )
    sections = keys.get("rope.dimension_sections")
    if sections is not None and np.any(np.asarray(sections)):
        raise UnsupportedValue(
            f"{keys.arch}.rope.dimension_sections = {shown(sections)}; files without sections are supported"
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


def read_hparams(
    metadata: Mapping[str, Any], arch: str, *, n_vocab: int, neox: bool, is_layer_norm: bool = False
) -> HParams:
    """Read the numbers that all families share.

    `n_vocab` is the number of rows of the token embedding, which may exceed the tokenizer's list. `is_layer_norm`:
    norms subtract the mean too, and have an epsilon of their own.
    Raises ModelError for a key that is missing or makes no sense.
    """
    keys = Keys(metadata, arch)
    n_embd = keys.integer("embedding_length", 1)
    n_head = keys.integer("attention.head_count", 1, n_embd, by_layer=True)
    n_head_kv = keys.integer("attention.head_count_kv", 1, n_head, n_head, by_layer=True)
    if n_head % n_head_kv:
        raise keys.refused("attention.head_count_kv", n_head_kv, f"a divisor of head_count = {n_head}")
    head_dim = keys.integer("attention.key_length", 1, default=n_embd // n_head)
    n_layer_all = keys.integer("block_count", 1, MAX_LAYERS)
    n_layer_nextn = keys.integer("nextn_predict_layers", 0, n_layer_all - 1, default=0)
    n_layer = n_layer_all - n_layer_nextn
    n_expert = keys.integer("expert_count", 0, default=0)
    n_expert = n_expert if n_expert > 1 else 0  # dense models of Hunyuan say 1
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
        norm_eps=keys.number(
            f"attention.layer_norm_{'' if is_layer_norm else 'rms_'}epsilon", 0.0, default=1e-5
        ),
        rope=rope,
        rope_swa=rope,
        attn_scale=keys.number("attention.scale", 0.0, default=0.0) or head_dim**-0.5,
        is_swa=(False,) * n_layer,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_ff_exp=n_ff_exp or n_ff,
        n_layer_nextn=n_layer_nextn,
        is_layer_norm=is_layer_norm,
        expert_weights_scale=keys.number("expert_weights_scale", 0.0, default=0.0) or 1.0,
    )


def windowed_layers(keys: Keys, hp: HParams, period: int) -> tuple[bool, ...]:
    """Which layers have a window: as the file lists, or all but the last of every `period`, which it may change."""
    key, n_layer = "attention.sliding_window_pattern", hp.n_layer
    pattern = keys.get(key, period)
    if isinstance(pattern, (list, np.ndarray)):
        listed = np.asarray(pattern)
        if (
            listed.shape not in ((n_layer,), (n_layer + hp.n_layer_nextn,))
            or not np.isin(listed, (0, 1)).all()
        ):
            raise keys.refused(key, pattern, f"a whole number or {n_layer} truth values, one a layer")
        return tuple(listed.astype(bool).tolist()[:n_layer])
    period = keys.integer(key, 1, default=period)
    return tuple(i % period < period - 1 for i in range(n_layer))


def read_router(keys: Keys, n_expert: int, *, kind: str = "softmax", normalise: bool | None = None) -> Router:
    """Read how experts are chosen; `normalise` None has the file say.

    Raises UnsupportedValue for a kind of router that is not known, ModelError for groups that make no sense.
    """
    given = keys.integer("expert_gating_func", 0, default=0)
    if given:
        if given not in GATING:
            known = ", ".join(f"{n} ({name})" for n, name in GATING.items())
            raise UnsupportedValue(f"{keys.arch}.expert_gating_func = {given}; {known} are supported")
        kind = GATING[given]
    if normalise is None:
        normalise = bool(keys.get("expert_weights_norm", False))
    n_group = keys.integer("expert_group_count", 0, max(1, n_expert - 1), default=0)
    if n_group <= 1:
        return Router(kind, normalise)
    if n_expert % n_group or n_expert // n_group < 2:
        raise keys.refused(
            "expert_group_count",
            n_group,
            f"such that expert_count = {n_expert} gives equal groups of 2 or more",
        )
    return Router(kind, normalise, n_group, keys.integer("expert_group_used_count", 1, n_group))


def with_windows(
    hp: HParams,
    keys: Keys,
    *,
    period: int,
    n_swa: int = 0,
    freq_base: float | None = None,
    is_scaled: bool = True,
) -> HParams:
    """Sliding windows in all but the last of every `period` layers, where the file has a window or `n_swa` is one.

    Layers with a window turn by a base of their own if the file or `freq_base` has one, and with `is_scaled` stretch
    positions as the others do.
    """
    n_swa = keys.integer("attention.sliding_window", 0, default=n_swa)
    base = keys.number("rope.freq_base_swa", ABOVE_0, default=freq_base or hp.rope.freq_base)
    local = replace(hp.rope, freq_base=base)
    if not is_scaled:
        local = replace(local, freq_scale=1.0, ext_factor=0.0, attn_factor=1.0)
    is_swa = windowed_layers(keys, hp, period)
    return replace(hp, n_swa=n_swa, is_swa=is_swa if n_swa else (False,) * hp.n_layer, rope_swa=local)
