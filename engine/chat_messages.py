"""Messages of a conversation in the form that chat templates expect.

Requests come in OpenAI's form; templates were written against transformers, which differs: tool arguments are objects
there, absent is not null, reasoning has several names. Knows no template and no tokenizer; changes nothing it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .errors import TemplateError

Message = Mapping[str, Any]

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")


def normalized(
    messages: Sequence[Message], *, parse_arguments: bool, flatten: bool, keeps_null: bool = False
) -> list[dict[str, Any]]:
    """The messages without nulls, with a content each, and reasoning under both of its common names.

    parse_arguments makes tool calls' arguments objects, else they become JSON strings. flatten joins text parts with
    newlines, as llama.cpp does. keeps_null: a message of calls alone has null for its content. Raises: TemplateError.
    """
    result = [_normalized(message, parse_arguments, flatten) for message in messages]
    if keeps_null:
        for message in result:
            if message.get("tool_calls") and not message["content"]:
                message["content"] = None
    return result


def has_parts(messages: Sequence[Message]) -> bool:
    """Whether a message's content is a list of parts."""
    return any(isinstance(m, Mapping) and isinstance(m.get("content"), (list, tuple)) for m in messages)


def has_arguments(messages: Sequence[Message]) -> bool:
    """Whether a message calls a tool."""
    return any(isinstance(m, Mapping) and m.get("tool_calls") for m in messages)


def in_parts(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with each text content as a list of one part."""
    return [
        message | {"content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message["content"], str)
        else message
        for message in messages
    ]


def _normalized(message: Message, parse_arguments: bool, flatten: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError("a message is not an object with a role; say, {'role': 'user', 'content': 'Hello'}")
    result = {key: value for key, value in message.items() if value is not None}
    content = result.get("content", "")
    if flatten and isinstance(content, (list, tuple)):
        content = "\n".join(_part_text(part) for part in content)
    result["content"] = content
    reasoning = next((result[name] for name in _REASONING_NAMES if name in result), None)
    if reasoning is not None:
        result["reasoning_content"] = result["thinking"] = reasoning
    if "tool_calls" in result:
        result["tool_calls"] = [_tool_call(call, parse_arguments) for call in result["tool_calls"]]
    return result


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TemplateError(f"a content part is of type {kind!r}; this model's chat template takes text only")
    return text


def _tool_call(call: Any, parse_arguments: bool) -> dict[str, Any]:
    if not isinstance(call, Mapping):
        raise TemplateError(f"a tool call is of type {type(call).__name__}; an object with a function is needed")
    result = {key: value for key, value in call.items() if value is not None}
    function = result.get("function")
    if isinstance(function, Mapping):
        function = {key: value for key, value in function.items() if value is not None}
        if "arguments" in function:
            function["arguments"] = _arguments(function["arguments"], parse_arguments)
        result["function"] = function
    return result


def _arguments(arguments: Any, parse: bool) -> Any:
    """Arguments as an object where they are one, or as JSON text."""
    if not parse:
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
