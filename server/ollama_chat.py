"""The requests and the answers of /api/chat and /api/generate, Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .openai_logprobs import TokenLogprob

REFUSED_OPTIONS: dict[str, tuple[Any, ...]] = {"typical_p": (1,), "mirostat": (0,), "tfs_z": (1,)}
REFUSED: dict[str, tuple[Any, ...]] = {"suffix": ("",), "template": ("",), "context": ([],), "images": ([],)}
IGNORED = ("keep_alive", "truncate", "shift")
IGNORED_OPTIONS = (
    "num_keep", "num_batch", "num_gpu", "main_gpu", "low_vram", "use_mmap", "use_mlock", "num_thread", "numa",
    "f16_kv", "vocab_only", "logits_all", "embedding_only", "penalize_newline",
)  # fmt: skip


class Options(msgspec.Struct):
    """How tokens are chosen and when an answer ends. Below 0, `num_predict` is as many as fit."""

    num_predict: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    num_ctx: int | None = None
    typical_p: Any = None
    mirostat: Any = None
    tfs_z: Any = None


class AskedFields(msgspec.Struct, kw_only=True):
    """What both endpoints take."""

    model: str | None = None
    stream: bool | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None


class Function(msgspec.Struct):
    """A function that is called."""

    name: str
    arguments: dict[str, Any] = {}


class Call(msgspec.Struct, omit_defaults=True):
    """A call of a tool."""

    function: Function
    id: str | None = None


class ChatMessage(msgspec.Struct):
    """A message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Call] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatRequest(AskedFields, kw_only=True):
    """What a client of /api/chat sends. No messages at all ask for the model to be loaded, which it is."""

    messages: list[ChatMessage] = []
    tools: list[dict[str, Any]] | None = None


class OllamaGenerateRequest(AskedFields, kw_only=True):
    """What a client of /api/generate sends. `raw` continues the prompt as it is, without the model's template."""

    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    suffix: Any = None
    template: Any = None
    context: Any = None
    images: Any = None


class AnswerLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A whole answer, or a line of a stream; the last line has why it ended, counts, and times in nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    prompt_cache_hit_tokens: int | None = None
    logprobs: list[TokenLogprob] | None = None


class AnswerMessage(msgspec.Struct, omit_defaults=True):
    """The model's message, or what a line adds to it."""

    role: str
    content: str
    thinking: str | None = None
    tool_calls: list[Call] | None = None


class ChatLine(AnswerLine, kw_only=True):
    """An answer of /api/chat."""

    message: AnswerMessage


class GenerateLine(AnswerLine, kw_only=True, omit_defaults=True):
    """An answer of /api/generate."""

    response: str
    thinking: str | None = None
