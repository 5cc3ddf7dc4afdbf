"""What an answer's text is made of: content, reasoning and calls of tools."""

from __future__ import annotations

from typing import Any

import msgspec

from .openai_chat import ChatDelta, ToolCall


class MessageParts:
    """Takes the text of one answer as it comes and says what each piece adds."""

    def __init__(self) -> None:
        self.reasoning = ""
        self.tool_calls: list[ToolCall] = []
        self._content = ""

    @property
    def content(self) -> str | None:
        """The text for the reader; None where there are only calls."""
        return None if self.tool_calls and not self._content else self._content

    @property
    def has_calls(self) -> bool:
        """Whether tools are called."""
        return bool(self.tool_calls)

    def push(self, text: str) -> list[ChatDelta]:
        """Take more text."""
        if not text:
            return []
        self._content += text
        return [ChatDelta(content=text)]

    @property
    def n_reasoning(self) -> int:
        """Tokens of reasoning so far."""
        return 0

    def message(self) -> dict[str, Any]:
        """The whole as a message of a conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = msgspec.to_builtins(self.tool_calls)
        return message

    def finish(self) -> list[ChatDelta]:
        """Take the end."""
        return []
