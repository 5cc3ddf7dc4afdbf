"""The request and the answers of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from . import sampling_fields
from .openai_logprobs import ChatLogprobs
from .openai_usage import Timings, Usage
from .sampling_fields import MAX_CHOICES, SamplingFields, Tokens

REFUSED: dict[str, tuple[Any, ...]] = sampling_fields.REFUSED | {
    "audio": (),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "web_search_options": (),
    "prediction": (),
}
IGNORED = (
    "user", "safety_identifier", "metadata", "store", "service_tier", "prompt_cache_key", "verbosity",
    "timings_per_token", "samplers", "id_slot",
)  # fmt: skip


class StreamOptions(msgspec.Struct):
    """What a stream is to have besides the text."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Message(msgspec.Struct, omit_defaults=True):
    """A message of a conversation; `content` is a text or a list of parts."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatRequest(SamplingFields, kw_only=True):
    """What a client sends."""

    messages: Annotated[list[Message], msgspec.Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    max_completion_tokens: Tokens | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    json_schema: dict[str, Any] | None = None
    grammar: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    web_search_options: Any = None
    prediction: Any = None

    def asked_tokens(self) -> int | None:
        """The most tokens that the request wants; OpenAI's newer name comes first."""
        asked = self.max_completion_tokens
        return super().asked_tokens() if asked is None else None if asked == -1 else asked


class ToolFunction(msgspec.Struct):
    """The function that is called and its arguments as JSON text; in a stream the part that is new."""

    name: str | None
    arguments: str


class ToolCall(msgspec.Struct, omit_defaults=True):
    """A call of a tool. `index` is given in streams only."""

    function: ToolFunction
    id: str | None = None
    type: str | None = None
    index: int | None = None


class AnswerMessage(msgspec.Struct):
    """The model's message."""

    role: str
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET
    refusal: None = None


class ChatChoice(msgspec.Struct):
    """One of the answers."""

    index: int
    message: AnswerMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings
    system_fingerprint: str


class ChatDelta(msgspec.Struct, omit_defaults=True):
    """What a chunk adds to a message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class ChunkChoice(msgspec.Struct):
    """One answer's part of a chunk."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    """A chunk of a stream; the one with `usage` has no choices."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str
