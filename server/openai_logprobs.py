"""Log-probabilities in the two shapes of OpenAI's API: chat's entries and the lists of /v1/completions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .messages import TokenScore

UNLIKELY = -9999.0  # what OpenAI gives for tokens that cannot come; minus infinity is no JSON


class TopLogprob(msgspec.Struct):
    """One of the likeliest tokens at a place."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token of the answer."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """The tokens of a message."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """Four lists of one length; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def finite(logprob: float) -> float:
    """A number that JSON can hold and that is at most 0."""
    return UNLIKELY if math.isnan(logprob) else min(0.0, max(logprob, UNLIKELY))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def chat_logprobs(scores: Sequence[TokenScore], n_top: int) -> ChatLogprobs:
    """The entries of a message or of a part of it."""
    return ChatLogprobs(
        [
            TokenLogprob(
                _text(score.data),
                finite(score.logprob or 0.0),
                list(score.data),
                [TopLogprob(_text(data), finite(value), list(data)) for _, data, value in score.top[:n_top]],
            )
            for score in scores
        ]
    )


def completion_logprobs(scores: Sequence[TokenScore], n_top: int, offset: int) -> CompletionLogprobs:
    """The four lists for tokens whose text starts at `offset`; offsets count characters of what tokens say alone."""
    result = CompletionLogprobs([], [], [], [])
    for score in scores:
        text = _text(score.data)
        result.tokens.append(text)
        result.token_logprobs.append(None if score.logprob is None else finite(score.logprob))
        top = {_text(data): finite(value) for _, data, value in score.top[:n_top]}
        result.top_logprobs.append(None if score.logprob is None or not n_top else top)
        result.text_offset.append(offset)
        offset += len(text)
    return result
