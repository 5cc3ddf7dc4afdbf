"""The blocks of an answer on /v1/messages: whole, and as events while they grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .anthropic_messages import Block, TextBlock, ThinkingBlock, ToolUseBlock
from .message_parts import MessageParts, arguments_of
from .openai_chat import ChatDelta

Event = dict[str, Any]


def blocks_of(parts: MessageParts, shows_thinking: bool) -> list[Block]:
    """The blocks of a finished answer; a call that was cut is left out."""
    blocks: list[Block] = []
    if parts.reasoning and shows_thinking:
        blocks.append(ThinkingBlock(parts.reasoning))
    if parts.content:
        blocks.append(TextBlock(parts.content))
    for call in parts.tool_calls:
        if (arguments := arguments_of(call)) is not None:
            blocks.append(ToolUseBlock(call.id or "", call.function.name or "", arguments))
    return blocks


class GrowingBlocks:
    """The blocks of a stream, one open at a time."""

    def __init__(self, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: Block | None = None

    def events_of(self, delta: ChatDelta) -> Iterator[Event]:
        """What an addition to the message does to its blocks."""
        if delta.reasoning_content and self._shows_thinking:
            yield from self._begin(ThinkingBlock(""))
            yield self._grow("thinking_delta", thinking=delta.reasoning_content)
        if delta.content:
            yield from self._begin(TextBlock(""))
            yield self._grow("text_delta", text=delta.content)
        for call in delta.tool_calls or ():
            if call.id is not None:
                yield from self._begin(ToolUseBlock(call.id, call.function.name or "", {}))
            if call.function.arguments:
                yield self._grow("input_json_delta", partial_json=call.function.arguments)

    def end(self) -> Iterator[Event]:
        """Close the block that is open."""
        if isinstance(self._open, ThinkingBlock):
            yield self._grow("signature_delta", signature="")
        if self._open is not None:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = None

    def _begin(self, block: Block) -> Iterator[Event]:
        """Open a block; text and reasoning go on in one of their kind."""
        if type(block) is type(self._open) and not isinstance(block, ToolUseBlock):
            return
        yield from self.end()
        self._index += 1
        self._open = block
        yield {"type": "content_block_start", "index": self._index, "content_block": msgspec.to_builtins(block)}

    def _grow(self, kind: str, **fields: str) -> Event:
        return {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **fields}}
