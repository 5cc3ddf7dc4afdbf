"""From a chat request to what the engine is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from .errors import BadRequest
from .form_fields import form_of
from .front import Front
from .messages import Chat, Generate
from .openai_chat import REFUSED, ChatRequest, Message
from .refusals import refuse


def asked_chat(front: Front, request: web.Request, asked: ChatRequest) -> Generate:
    """The engine's part of a chat request. Raises BadRequest for what makes no sense or is not supported."""
    front.check_chat()
    refuse(asked, REFUSED)
    if asked.top_logprobs is not None and not asked.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    sampling = front.sampling(request, asked.chosen(front.options.sampling, front.options.max_tokens))
    if asked.logprobs:
        sampling["logprobs"] = asked.top_logprobs or 0
    sampling |= form_of(asked)
    return Generate(
        0, sampling, chat=conversation_of(asked), n=asked.n or 1, tells_each=bool(asked.stream),
        cache_prompt=asked.cache_prompt is not False,
    )  # fmt: skip


def conversation_of(asked: ChatRequest) -> Chat:
    """What becomes the prompt."""
    return Chat(
        _messages(asked), tools=asked.tools, tool_choice=asked.tool_choice,
        parallel_tool_calls=asked.parallel_tool_calls, variables=_variables(asked),
    )  # fmt: skip


def check_end(messages: Sequence[Message]) -> None:
    """Raise BadRequest where a client of another API wants the model to go on with what it began."""
    if messages and messages[-1].role == "assistant":
        raise BadRequest(
            "the last message is the assistant's; this server does not continue it: end with one of the user's",
            param="messages",
        )


def _messages(asked: ChatRequest) -> list[dict[str, Any]]:
    """The conversation; `developer` is what OpenAI calls `system` now."""
    messages: list[dict[str, Any]] = msgspec.to_builtins(asked.messages)
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
    return messages


def _variables(asked: ChatRequest) -> dict[str, Any]:
    variables = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", asked.reasoning_effort)
        for name, value in thinking_variables(asked.reasoning_effort != "none").items():
            variables.setdefault(name, value)
    return variables


def thinking_variables(thinks: bool) -> dict[str, Any]:
    """The variables by which templates are told whether to let the model reason."""
    return {"enable_thinking": thinks, "thinking": thinks}
