"""Messages of Anthropic's API, with the system prompt beside them, as messages of a chat."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .anthropic_messages import Turn
from .content_text import part_text, string_field, text_of
from .errors import BadRequest
from .openai_chat import Message

TEXT = ("text",)
# An agent puts this before its instructions, different each time, so that no prefix would ever be found again.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:(\s*\w+=[^;\n]*;)*\s*")


def chat_messages(system: str | list[dict[str, Any]] | None, turns: Sequence[Turn]) -> list[Message]:
    """The conversation. Raises BadRequest naming the block at fault."""
    messages = [Message("system", text)] if (text := _system(system)) else []
    names: dict[str, str] = {}
    for number, turn in enumerate(turns):
        where = f"messages[{number}].content"
        if turn.role == "assistant":
            messages.append(_assistant(turn.content, where, names))
        elif turn.role == "system":
            messages.append(Message("system", text_of(turn.content, where, TEXT)))
        else:
            messages += _user(turn.content, where, names)
    return messages


def _system(system: str | list[dict[str, Any]] | None) -> str:
    if system is None:
        return ""
    blocks = [system] if isinstance(system, str) else system
    texts = (
        block if isinstance(block, str) else part_text(block, f"system[{k}]", TEXT) for k, block in enumerate(blocks)
    )
    return "\n".join(text for text in (_BILLING.sub("", text) for text in texts) if text)


def _user(content: str | list[dict[str, Any]], where: str, names: Mapping[str, str]) -> Iterator[Message]:
    """A message of the user: results of tools are messages of their own."""
    if isinstance(content, str):
        yield Message("user", content)
        return
    texts: list[str] = []
    for number, block in enumerate(content):
        at = f"{where}[{number}]"
        if block.get("type") != "tool_result":
            texts.append(part_text(block, at, (*TEXT, "tool_result")))
            continue
        if texts:
            yield Message("user", "\n".join(texts))
            texts = []
        yield _result(block, at, names)
    if texts or not content:
        yield Message("user", "\n".join(texts))


def _result(block: Mapping[str, Any], where: str, names: Mapping[str, str]) -> Message:
    id, content = string_field(block, "tool_use_id", where), block.get("content")
    text = "" if content is None else text_of(content, f"{where}.content", TEXT)
    if block.get("is_error") is True:
        text = f"Error: {text}"
    return Message("tool", text, name=names.get(id), tool_call_id=id)


def _assistant(content: str | list[dict[str, Any]], where: str, names: dict[str, str]) -> Message:
    """A message of the model; `names` gets those of the tools it calls."""
    if isinstance(content, str):
        return Message("assistant", content)
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(content):
        at, kind = f"{where}[{number}]", block.get("type")
        if kind == "thinking":
            thoughts.append(string_field(block, "thinking", at))
        elif kind == "tool_use":
            calls.append(_call(block, at, names))
        elif kind != "redacted_thinking":  # which only its maker can read
            texts.append(part_text(block, at, (*TEXT, "thinking", "tool_use")))
    return Message(
        "assistant", "\n".join(texts) if texts else None, tool_calls=calls or None,
        reasoning_content="\n".join(thoughts) or None,
    )  # fmt: skip


def _call(block: Mapping[str, Any], where: str, names: dict[str, str]) -> dict[str, Any]:
    id, name, given = string_field(block, "id", where), string_field(block, "name", where), block.get("input")
    if not isinstance(given, dict):
        raise BadRequest(f"{where}.input is no object", param=f"{where}.input")
    names[id] = name
    function = {"name": name, "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": id, "type": "function", "function": function}
