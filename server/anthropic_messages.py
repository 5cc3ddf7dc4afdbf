"""The request and the answers of /v1/messages, Anthropic's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .sampling_fields import SamplingFields

REFUSED: dict[str, tuple[Any, ...]] = {"container": (), "mcp_servers": ([],)}
IGNORED = (
    "metadata", "service_tier", "cache_control", "context_management", "inference_geo", "speed", "diagnostics",
    "user_profile_id",
)  # fmt: skip


class Turn(msgspec.Struct):
    """A message of a conversation; `content` is a text or a list of blocks."""

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class Tool(msgspec.Struct):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Whether tools may or must be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model is to reason first. `budget_tokens` is told to templates that know it."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    display: str | None = None


class OutputConfig(msgspec.Struct):
    """How hard the model is to think, and the form of its answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: dict[str, Any] | None = None


class MessagesRequest(SamplingFields, kw_only=True):
    """What a client sends, also to have its tokens counted."""

    messages: Annotated[list[Turn], msgspec.Meta(min_length=1)]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    container: Any = None
    mcp_servers: Any = None


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of an answer."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning. There is nothing to sign, and what comes back is not checked."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Tokens of reasoning among those generated, whether they are shown or not."""

    thinking_tokens: int = 0


class MessagesUsage(msgspec.Struct):
    """Tokens of a request; those that the prefix cache had are not among `input_tokens`."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()


class AnswerTurn(msgspec.Struct, kw_only=True):
    """The model's message."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class TokenCount(msgspec.Struct):
    """The tokens of a prompt."""

    input_tokens: int
