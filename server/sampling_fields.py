"""The request fields about sampling that all endpoints share, and what they are as fields of SamplingParams.

Absent and null are the same everywhere. Names are OpenAI's, then llama-server's for what OpenAI has not. Ranges that
the engine checks are not repeated here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from .errors import BadRequest

MAX_CHOICES = 128
# Samplers and forms of llama-server and vLLM that are not here, with the values that switch them off.
REFUSED: dict[str, tuple[Any, ...]] = {
    "typical_p": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (-1, 0),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "lora": ([],),
}

Bias = dict[str, float | None] | list[tuple[int, float | bool]]
Tokens = Annotated[int, msgspec.Meta(ge=-1)]


class SamplingFields(msgspec.Struct, kw_only=True):
    """How tokens are chosen and when an answer ends."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    logit_bias: Bias | None = None
    max_tokens: Tokens | None = None
    n_predict: Tokens | None = None
    ignore_eos: bool | None = None
    loop_limit: int | None = None
    cache_prompt: bool | None = None
    typical_p: Any = None
    mirostat: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    dynatemp_range: Any = None
    top_n_sigma: Any = None
    repetition_penalty: Any = None
    min_tokens: Any = None
    stop_token_ids: Any = None
    use_beam_search: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    lora: Any = None

    def chosen(self, defaults: Mapping[str, Any], max_tokens: int | None) -> dict[str, Any]:
        """What SamplingParams gets: the request's values over the server's; `max_tokens` caps what was asked for."""
        names = (
            "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty",
            "repeat_penalty", "repeat_last_n", "ignore_eos", "loop_limit",
        )  # fmt: skip
        given = {name: getattr(self, name) for name in names}
        if self.logit_bias is not None:
            given["logit_bias"] = _bias(self.logit_bias)
        asked = self.asked_tokens()
        given["max_tokens"] = min((n for n in (asked, max_tokens) if n is not None), default=None)
        return {**defaults, **{name: value for name, value in given.items() if value is not None}}

    def asked_tokens(self) -> int | None:
        """The most tokens that the request wants; None for as many as fit."""
        asked = self.n_predict if self.max_tokens is None else self.max_tokens
        return None if asked == -1 else asked


def _bias(bias: Bias) -> dict[str, float]:
    """One form for OpenAI's object and llama-server's list; false bans a token."""
    if isinstance(bias, dict):
        return {token: value for token, value in bias.items() if value is not None}
    result: dict[str, float] = {}
    for token, value in bias:
        if value is True:
            raise BadRequest(f"logit_bias of token {token} is true; a number is needed, or false", param="logit_bias")
        result[str(token)] = -math.inf if value is False else float(value)
    return result
