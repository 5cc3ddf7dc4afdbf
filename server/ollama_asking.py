"""From a request of /api/chat or /api/generate to a chat request that asks the same, or a plain continuation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .chat_asking import check_end, thinking_variables
from .errors import BadRequest
from .front import Front
from .ollama_chat import (
    REFUSED,
    REFUSED_OPTIONS,
    AskedFields,
    ChatMessage,
    OllamaChatRequest,
    OllamaGenerateRequest,
    Options,
)
from .openai_chat import ChatRequest, Message
from .openai_completion import CompletionRequest
from .refusals import refuse

LATEST = ":latest"
SAME = (
    "temperature", "top_k", "top_p", "min_p", "seed", "stop", "repeat_penalty", "repeat_last_n", "presence_penalty",
    "frequency_penalty",
)  # fmt: skip


def model_name(front: Front, asked: str | None) -> str:
    """The name that an answer carries: the one asked for, with `:latest` where that was said."""
    if asked is None or asked in front.names or not asked.endswith(LATEST):
        return front.model_name(asked)
    served = front.model_name(asked.removesuffix(LATEST))
    return served + LATEST


def wants_stream(asked: AskedFields) -> bool:
    """Whether the answer comes in lines; here that is what happens unless it is switched off."""
    return asked.stream is not False


def chat_request(front: Front, asked: OllamaChatRequest) -> ChatRequest:
    """The chat request of /api/chat. Raises BadRequest."""
    messages = _messages(asked.messages)
    check_end(messages)
    return ChatRequest(messages=messages, tools=asked.tools, **_common(front, asked))


def prompt_request(front: Front, asked: OllamaGenerateRequest) -> ChatRequest:
    """The chat request of /api/generate: the prompt is what the user says. Raises BadRequest."""
    refuse(asked, REFUSED)
    system = [Message("system", asked.system)] if asked.system else []
    return ChatRequest(messages=[*system, Message("user", asked.prompt)], **_common(front, asked))


def raw_request(front: Front, asked: OllamaGenerateRequest) -> CompletionRequest:
    """The continuation that /api/generate wants with `raw`. Raises BadRequest."""
    refuse(asked, REFUSED)
    if asked.system:
        raise BadRequest("raw continues the prompt alone; system has no place in it", param="system")
    fields = _common(front, asked)
    del fields["chat_template_kwargs"], fields["reasoning_effort"], fields["top_logprobs"]
    fields["logprobs"] = (asked.top_logprobs or 0) if asked.logprobs else None
    return CompletionRequest(prompt=asked.prompt, **fields)


def _common(front: Front, asked: AskedFields) -> dict[str, Any]:
    """The fields of chat's request that both endpoints have under other names."""
    form: dict[str, Any] | None = None
    if asked.format:
        is_any = asked.format == "json"
        form = {"type": "json_object"} if is_any else {"type": "json_schema", "json_schema": {"schema": asked.format}}
    return {
        **_sampling(front, asked.options or Options()),
        "model": asked.model,
        "stream": wants_stream(asked),
        "response_format": form,
        "logprobs": asked.logprobs,
        "top_logprobs": asked.top_logprobs if asked.logprobs else None,
        "reasoning_effort": asked.think if isinstance(asked.think, str) else None,
        "chat_template_kwargs": _variables(front, asked.think),
    }


def _sampling(front: Front, options: Options) -> dict[str, Any]:
    refuse(options, REFUSED_OPTIONS)
    n_ctx = front.facts["n_ctx"]
    if options.num_ctx is not None and options.num_ctx > n_ctx:
        raise BadRequest(
            f"num_ctx is {options.num_ctx}; this server has {n_ctx} tokens a request: start it with --ctx "
            f"{options.num_ctx}, or ask for less",
            param="options.num_ctx",
        )
    n = options.num_predict
    return {name: getattr(options, name) for name in SAME} | {"max_tokens": None if n is None or n < 0 else n}


def _variables(front: Front, think: bool | str | None) -> dict[str, Any] | None:
    if think is None:
        return None
    if think and "reasoning" not in front.facts["capabilities"]:
        raise BadRequest(f"{front.names[0]} does not support thinking; leave think out", param="think")
    return thinking_variables(bool(think))


def _messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The conversation. Calls that have no ids get some, which their results take in turn."""
    found: list[Message] = []
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.images:
            raise BadRequest(
                f"messages[{number}].images: this server takes text", param="images", code="unsupported_parameter"
            )
        one = Message(message.role, message.content, reasoning_content=message.thinking)
        if message.role == "tool":
            one.name = message.tool_name
            one.tool_call_id = message.tool_call_id or (waiting.pop(0) if waiting else None)
        elif message.tool_calls:
            waiting = [call.id or f"call_{number}_{k}" for k, call in enumerate(message.tool_calls)]
            one.tool_calls = [
                {"id": id, "type": "function", "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                }}
                for id, call in zip(waiting, message.tool_calls)
            ]  # fmt: skip
        found.append(one)
    return found
