"""What an answer is made of: content, reasoning and calls of tools, as its pieces bring them."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from .messages import CallPiece, Piece
from .openai_chat import ChatDelta, ToolCall, ToolFunction


class MessageParts:
    """Gathers one answer, and says what each piece adds to its message."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.n_reasoning = 0
        self.tool_calls: list[ToolCall] = []

    def push(self, piece: Piece) -> list[ChatDelta]:
        """Take a piece; reasoning comes before the content, and both before calls."""
        self.n_reasoning += piece.n_reasoning
        deltas = []
        if piece.reasoning:
            self.reasoning += piece.reasoning
            deltas.append(ChatDelta(reasoning_content=piece.reasoning))
        if piece.text:
            self.content += piece.text
            deltas.append(ChatDelta(content=piece.text))
        for call in piece.calls:
            self._gather(call)
            deltas.append(ChatDelta(tool_calls=[_told(call)]))
        return deltas

    def _gather(self, call: CallPiece) -> None:
        if call.index == len(self.tool_calls):
            self.tool_calls.append(ToolCall(ToolFunction(call.name, ""), call.id, "function"))
        self.tool_calls[call.index].function.arguments += call.arguments

    def message(self) -> dict[str, Any]:
        """The whole as a message of a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = msgspec.to_builtins(self.tool_calls)
        return message


def arguments_of(call: ToolCall) -> dict[str, Any] | None:
    """A call's arguments as an object; None where the answer was cut within them."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return arguments if isinstance(arguments, dict) else None


def _told(call: CallPiece) -> ToolCall:
    """A piece of a call in a chunk."""
    kind = None if call.id is None else "function"
    return ToolCall(ToolFunction(call.name, call.arguments), call.id, kind, call.index)
