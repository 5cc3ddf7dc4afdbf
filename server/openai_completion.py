"""The request and the answers of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from . import sampling_fields
from .openai_chat import StreamOptions
from .openai_logprobs import CompletionLogprobs
from .openai_usage import Timings, Usage
from .sampling_fields import MAX_CHOICES, SamplingFields

REFUSED: dict[str, tuple[Any, ...]] = sampling_fields.REFUSED | {"suffix": ("",), "best_of": (1,)}
IGNORED = ("user", "timings_per_token", "samplers", "id_slot")


class CompletionRequest(SamplingFields, kw_only=True):
    """What a client sends; a prompt is a text or token ids, or a list of either."""

    prompt: str | list[str | int | list[int]]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    suffix: Any = None
    best_of: Any = None


class CompletionChoice(msgspec.Struct):
    """One of the answers; in a stream what is new of it."""

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None


class Completion(msgspec.Struct, kw_only=True):
    """The whole answer, or a chunk of a stream; the chunk with `usage` has no choices."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str
