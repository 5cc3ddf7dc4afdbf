"""Items of /v1/responses as messages of a conversation, and tools in chat's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .content_text import string_field, text_of
from .errors import BadRequest

ROLES = {"user": "user", "system": "system", "developer": "system", "assistant": "assistant"}
TEXT_PARTS = ("input_text", "output_text", "text")


def items_of(given: str | Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The input as items; a text is one message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": given}]}]
    if not given:
        raise BadRequest("input is an empty list; give a text or at least one item", param="input")
    return list(given)


def messages_of(items: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages that items stand for. Raises BadRequest naming the item at fault."""
    messages: list[dict[str, Any]] = []
    reasoning = ""
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "reasoning":
            reasoning = text_of(item.get("content") or [], f"{where}.content", ("reasoning_text",))
            continue
        if kind == "message":
            message = _message(item, where)
        elif kind == "function_call":
            message = {"role": "assistant", "content": None, "tool_calls": [_call(item, where)]}
        elif kind == "function_call_output":
            output = text_of(item.get("output", ""), f"{where}.output", TEXT_PARTS)
            message = {"role": "tool", "tool_call_id": string_field(item, "call_id", where), "content": output}
        else:
            raise BadRequest(
                f"{where} is of type {kind!r}; message, reasoning, function_call and function_call_output are known",
                param=f"{where}.type",
            )
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = reasoning
        reasoning = ""
        _append(messages, message)
    return messages


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Add a message; calls go into the assistant's message before them."""
    before = messages[-1] if messages else None
    if before is not None and before["role"] == "assistant" == message["role"] and "tool_calls" in message:
        before.setdefault("tool_calls", []).extend(message["tool_calls"])
    else:
        messages.append(message)


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in ROLES:
        raise BadRequest(f"{where}.role is {role!r}; one of {', '.join(ROLES)} is needed", param=f"{where}.role")
    return {"role": ROLES[role], "content": text_of(item.get("content", ""), f"{where}.content", TEXT_PARTS)}


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = {"name": string_field(item, "name", where), "arguments": string_field(item, "arguments", where)}
    return {"id": string_field(item, "call_id", where), "type": "function", "function": function}


def chat_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Tools in chat's form. Raises BadRequest for those that the server would have to run itself."""
    found = []
    for number, tool in enumerate(tools or ()):
        if tool.get("type") != "function" or not isinstance(tool.get("name"), str):
            raise BadRequest(
                f"tools[{number}] is of type {tool.get('type')!r}; only functions with a name are supported",
                param=f"tools[{number}].type", code="unsupported_parameter",
            )  # fmt: skip
        function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
        found.append({"type": "function", "function": function})
    return found or None


def chat_tool_choice(choice: str | Mapping[str, Any] | None) -> str | dict[str, Any] | None:
    """A tool choice in chat's form."""
    if isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return dict(choice) if isinstance(choice, Mapping) else choice
