"""Tools for templates that know none, or that do not write calls: both are put into the messages' own texts.

A model that was never trained on tools gets them explained in the system message, with Hermes's marks for calls; what
tools answer comes as a user's message. Changes nothing it is given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .call_style import CallStyle

Messages = Sequence[Mapping[str, Any]]

_CONTENT = ("content", "reasoning_content", "reasoning", "thinking")
_INTRODUCTION = (
    "You can call functions. Each line is one of them, described as JSON:\n{tools}\n"
    "To call a function, write its name and its arguments as JSON between marks, and nothing after that:\n"
    '<tool_call>\n{{"name": "the name", "arguments": {{"an argument": "its value"}}}}\n</tool_call>\n'
    "Results come between <tool_response> and </tool_response>. Without need for a function, just answer."
)


def with_calls_written(messages: Messages, style: CallStyle) -> list[dict[str, Any]]:
    """The messages with each call of a tool as part of the assistant's text."""
    result: list[dict[str, Any]] = []
    for message in messages:
        calls = message.get("tool_calls")
        written = style.written([_name_and_arguments(call) for call in calls]) if calls else None
        if written is None:
            result.append(dict(message))
            continue
        content = message.get("content")
        text = content if isinstance(content, str) else ""
        kept = {key: value for key, value in message.items() if key != "tool_calls"}
        result.append(kept | {"content": f"{text}\n{written}" if text else written})
    return result


def with_calls_apart(messages: Messages) -> list[dict[str, Any]]:
    """The messages, those with content and calls as two."""
    result: list[dict[str, Any]] = []
    for message in messages:
        if message.get("tool_calls") and _text(message.get("content")):
            result.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {key: value for key, value in message.items() if key not in _CONTENT} | {"content": ""}
        result.append(dict(message))
    return result


def with_tools_explained(
    messages: Messages, tools: Sequence[Mapping[str, Any]], *, in_system: bool
) -> list[dict[str, Any]]:
    """The messages with the tools explained, in the system message or in the first one, and results as a user's."""
    explained = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    result: list[dict[str, Any]] = []
    for message in messages:
        item = dict(message)
        if item.get("role") == "tool":
            item = {"role": "user", "content": f"<tool_response>\n{_text(item.get('content'))}\n</tool_response>"}
            if result and result[-1]["role"] == "user":
                item["content"] = f"{_text(result.pop()['content'])}\n{item['content']}"
        result.append(item)
    if result and (result[0]["role"] == "system" or not in_system):
        result[0] = result[0] | {"content": f"{_text(result[0].get('content'))}\n\n{explained}".strip()}
        if not in_system and result[0]["role"] == "system" and len(result) > 1:
            first = result.pop(0)
            result[0] = result[0] | {"content": f"{first['content']}\n\n{_text(result[0].get('content'))}"}
        return result
    return [{"role": "system", "content": explained}, *result]


def _name_and_arguments(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function", call)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return str(function.get("name", "")), text


def _text(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return "\n".join(str(part.get("text", "")) if isinstance(part, Mapping) else str(part) for part in content)
    return "" if content is None else str(content)
