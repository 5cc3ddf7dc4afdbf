"""The items of a response as they grow, and the events that tell a client of each step.

Takes what chunks add to a message (ChatDelta) and keeps the items in the order in which they began. An item is open
until another kind of output begins.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from .messages import TokenScore
from .openai_chat import ChatDelta, ToolCall
from .openai_logprobs import chat_logprobs

Event = dict[str, Any]


class ResponseOutput:
    """The output of one response."""

    def __init__(self, n_top: int | None) -> None:
        self.items: list[dict[str, Any]] = []
        self._n_top = n_top
        self._open: dict[str, Any] | None = None

    def add(self, delta: ChatDelta, scores: Sequence[TokenScore] = ()) -> Iterator[Event]:
        """What a delta adds."""
        if delta.reasoning_content:
            yield from self._reasoning(delta.reasoning_content)
        if delta.content or (scores and self._n_top is not None):
            yield from self._content(delta.content or "", scores)
        for call in delta.tool_calls or ():
            yield from self._call(call)

    def _begin(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self.end()
        self.items.append(item)
        self._open = item
        yield self._event("output_item.added", item=_copy(item))

    def _event(self, kind: str, **more: Any) -> Event:
        return {"type": f"response.{kind}", "output_index": len(self.items) - 1, **more}

    def _part(self, name: str, **more: Any) -> Event:
        assert self._open is not None, "parts belong to an open item"
        return self._event(name, item_id=self._open["id"], content_index=0, **more)

    def _reasoning(self, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            yield from self._begin({"id": _id("rs"), "type": "reasoning", "summary": [], "content": [part]})
            yield self._part("content_part.added", part=_copy(part))
        assert self._open is not None, "it was just begun"
        self._open["content"][0]["text"] += text
        yield self._part("reasoning_text.delta", delta=text)

    def _content(self, text: str, scores: Sequence[TokenScore]) -> Iterator[Event]:
        part: dict[str, Any]
        if self._open is None or self._open["type"] != "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item: dict[str, Any] = {
                "id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []
            }  # fmt: skip
            yield from self._begin(item)
            item["content"] = [part]
            yield self._part("content_part.added", part=_copy(part))
        assert self._open is not None, "it was just begun"
        part = self._open["content"][0]
        part["text"] += text
        logprobs = [] if self._n_top is None else msgspec.to_builtins(chat_logprobs(scores, self._n_top).content)
        part["logprobs"] += logprobs
        yield self._part("output_text.delta", delta=text, logprobs=logprobs)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        function = call.function
        if call.id is not None:
            item = {
                "id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": call.id,
                "name": function.name or "", "arguments": "",
            }  # fmt: skip
            yield from self._begin(item)
        if self._open is None or self._open["type"] != "function_call" or not function.arguments:
            return
        self._open["arguments"] += function.arguments
        yield self._event(
            "function_call_arguments.delta", item_id=self._open["id"], delta=function.arguments
        )

    def end(self, status: str = "completed") -> Iterator[Event]:
        """End the open item."""
        item = self._open
        if item is None:
            return
        if item["type"] == "reasoning":
            yield self._part("reasoning_text.done", text=item["content"][0]["text"])
            yield self._part("content_part.done", part=_copy(item["content"][0]))
        elif item["type"] == "message":
            part = item["content"][0]
            yield self._part("output_text.done", text=part["text"], logprobs=part["logprobs"])
            yield self._part("content_part.done", part=_copy(part))
        else:
            yield self._event(
                "function_call_arguments.done", item_id=item["id"], name=item["name"], arguments=item["arguments"]
            )
        if "status" in item:
            item["status"] = status
        self._open = None
        yield self._event("output_item.done", item=_copy(item))


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it is now; it goes on growing."""
    return {name: [dict(part) for part in value] if name == "content" else value for name, value in item.items()}
