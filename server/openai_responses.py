"""The request and the answer of /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from . import sampling_fields
from .sampling_fields import SamplingFields, Tokens

REFUSED: dict[str, tuple[Any, ...]] = sampling_fields.REFUSED | {
    "background": (False,),
    "conversation": (),
    "prompt": (),
    "truncation": ("disabled",),
}
IGNORED = (
    "user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention", "stream_options",
    "max_tool_calls", "include (all but message.output_text.logprobs)", "text.verbosity", "reasoning.summary",
)  # fmt: skip
WITH_LOGPROBS = "message.output_text.logprobs"


class TextOptions(msgspec.Struct):
    """What the text must look like."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(msgspec.Struct):
    """How much the model is to think."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(SamplingFields, kw_only=True):
    """What a client sends; `input` is a text or a list of items."""

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: Tokens | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    metadata: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None
    truncation: Any = None

    def asked_tokens(self) -> int | None:
        """The most tokens that the request wants."""
        asked = self.max_output_tokens
        return super().asked_tokens() if asked is None else None if asked == -1 else asked

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities are to come with the text."""
        return WITH_LOGPROBS in (self.include or ()) or self.top_logprobs is not None


class InputDetails(msgspec.Struct):
    """Input tokens that the prefix cache had already."""

    cached_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """Tokens of reasoning among those generated."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Response(msgspec.Struct, kw_only=True):
    """The whole answer; `output` are items: reasoning, message, function_call."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, Any]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None


class DeletedResponse(msgspec.Struct):
    """A response that is forgotten."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    """The items that a response answered."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    object: str = "list"
    has_more: bool = False
