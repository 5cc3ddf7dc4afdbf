"""From a request of /v1/responses to what the engine is asked."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .chat_asking import thinking_variables
from .form_fields import format_of
from .front import Front
from .messages import Chat, Generate
from .openai_responses import ResponsesRequest
from .response_items import chat_tool_choice, chat_tools


def asked_response(
    front: Front, request: web.Request, asked: ResponsesRequest, messages: list[dict[str, Any]]
) -> Generate:
    """The engine's part of the request. Raises BadRequest."""
    front.check_chat()
    sampling = front.sampling(request, asked.chosen(front.options.sampling, front.options.max_tokens))
    if asked.wants_logprobs:
        sampling["logprobs"] = asked.top_logprobs or 0
    sampling |= format_of(None if asked.text is None else asked.text.format, "text.format")
    variables = dict(asked.chat_template_kwargs or {})
    if asked.reasoning is not None and asked.reasoning.effort is not None:
        variables.setdefault("reasoning_effort", asked.reasoning.effort)
        variables = thinking_variables(asked.reasoning.effort != "none") | variables
    system = [] if asked.instructions is None else [{"role": "system", "content": asked.instructions}]
    chat = Chat(
        [*system, *messages], tools=chat_tools(asked.tools), tool_choice=chat_tool_choice(asked.tool_choice),
        parallel_tool_calls=asked.parallel_tool_calls, variables=variables,
    )  # fmt: skip
    return Generate(
        0, sampling, chat=chat, tells_each=bool(asked.stream), cache_prompt=asked.cache_prompt is not False
    )
