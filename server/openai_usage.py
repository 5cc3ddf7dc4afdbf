"""Token counts and times of an answer: OpenAI's `usage` and llama-server's `timings`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .messages import Counts


class PromptDetails(msgspec.Struct):
    """Prompt tokens that the prefix cache had already."""

    cached_tokens: int = 0


class CompletionDetails(msgspec.Struct):
    """Tokens of reasoning among those generated."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of a request, all of its answers together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(msgspec.Struct):
    """Times of an answer in milliseconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


def usage_of(n_prompt: Sequence[int], counts: Sequence[Counts], n_reasoning: int = 0) -> Usage:
    """The usage of a request with prompts of these lengths; choices share their prompt, which counts once."""
    prompt, generated = sum(n_prompt), sum(c.n_generated for c in counts)
    n_choices = max(1, len(counts) // max(1, len(n_prompt)))
    cached = sum(c.n_cached for c in counts[::n_choices])
    return Usage(
        prompt, generated, prompt + generated, PromptDetails(min(cached, prompt)), CompletionDetails(n_reasoning)
    )


def timings_of(counts: Counts) -> Timings:
    """The times of one answer."""
    n_new = counts.n_prompt - counts.n_cached
    prompt_ms, decode_ms = counts.prefill_s * 1000, counts.decode_s * 1000
    n_after = max(0, counts.n_generated - 1)
    return Timings(
        counts.n_cached, n_new, prompt_ms, _ratio(prompt_ms, n_new), _ratio(n_new, counts.prefill_s),
        counts.n_generated, decode_ms, _ratio(decode_ms, n_after), _ratio(n_after, counts.decode_s),
    )  # fmt: skip


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else 0.0
