"""From a request of /v1/messages to a chat request that asks the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .anthropic_messages import REFUSED, MessagesRequest, Tool, ToolChoice
from .anthropic_turns import chat_messages
from .chat_asking import check_end, thinking_variables
from .errors import BadRequest
from .openai_chat import ChatRequest
from .refusals import refuse
from .sampling_fields import SamplingFields

EFFORTS = {"xhigh": "high", "max": "high"}  # templates know three


def chat_request(asked: MessagesRequest) -> ChatRequest:
    """The same request in chat's form. Raises BadRequest for what is not supported."""
    refuse(asked, REFUSED)
    sampling = {name: getattr(asked, name) for name in SamplingFields.__struct_fields__}
    if asked.stop_sequences is not None:
        if "" in asked.stop_sequences:
            raise BadRequest("stop_sequences has an empty text, which every answer has", param="stop_sequences")
        sampling["stop"] = asked.stop_sequences
    choice, config = asked.tool_choice, asked.output_config
    if choice is not None and choice.type in ("any", "tool") and not asked.tools:
        raise BadRequest(f"tool_choice is of type {choice.type!r} and there are no tools", param="tool_choice")
    messages = chat_messages(asked.system, asked.messages)
    check_end(messages)
    effort = None if config is None else config.effort
    return ChatRequest(
        **sampling,
        messages=messages,
        model=asked.model,
        stream=asked.stream,
        tools=_tools(asked.tools),
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=None if choice is None or not choice.disable_parallel_tool_use else False,
        response_format=_format(asked),
        reasoning_effort=EFFORTS.get(effort, effort) if effort is not None else None,
        chat_template_kwargs=_variables(asked),
    )


def shows_thinking(asked: MessagesRequest) -> bool:
    """Whether reasoning is part of the answer. Clients that did not ask for it expect text first."""
    thinking = asked.thinking
    return thinking is not None and thinking.type != "disabled" and thinking.display != "omitted"


def _variables(asked: MessagesRequest) -> dict[str, Any]:
    thinking = asked.thinking
    variables = thinking_variables(thinking is not None and thinking.type != "disabled")
    if thinking is not None and thinking.type == "enabled" and thinking.budget_tokens is not None:
        variables["thinking_budget"] = thinking.budget_tokens
    return variables


def _format(asked: MessagesRequest) -> dict[str, Any] | None:
    """The form of the answer; the field of the API's beta comes second."""
    given = asked.output_config.format if asked.output_config is not None else None
    return asked.output_format if given is None else given


def _tools(tools: Sequence[Tool] | None) -> list[dict[str, Any]] | None:
    found = []
    for number, tool in enumerate(tools or ()):
        if tool.type not in (None, "custom"):
            raise BadRequest(
                f"tools[{number}] is of type {tool.type!r}, which this server does not have; give it an input_schema "
                "and no type",
                param=f"tools[{number}].type", code="unsupported_parameter",
            )  # fmt: skip
        function = {
            "name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict,
        }  # fmt: skip
        kept = {name: value for name, value in function.items() if value is not None}
        found.append({"type": "function", "function": kept})
    return found or None


def _tool_choice(choice: ToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        if choice.name is None:
            raise BadRequest("tool_choice is of type tool and names none", param="tool_choice.name")
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type
