"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import uuid

import msgspec
from aiohttp import web

from .answer import Answer
from .answered import answered
from .anthropic_asking import chat_request, shows_thinking
from .anthropic_blocks import Event, GrowingBlocks, blocks_of
from .anthropic_messages import AnswerTurn, MessagesRequest, MessagesUsage, OutputTokensDetails, TokenCount
from .chat_asking import asked_chat, conversation_of
from .errors import ApiError
from .front import Front
from .message_parts import MessageParts
from .messages import Counts, Piece, Render
from .reply import json_reply
from .sse import EventStream

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "time": "max_tokens", "repetition": "max_tokens"}


async def messages(front: Front, request: web.Request) -> web.StreamResponse:
    """Answer a conversation, whole or as a stream."""
    asked = await front.read(request, MessagesRequest)
    reply = MessageReply(front.model_name(asked.model), shows_thinking(asked))
    generate = asked_chat(front, request, chat_request(asked))
    events = EventStream(request, front.options.write_timeout_s, PING)
    return await answered(front, request, generate, reply, events)


async def count_tokens(front: Front, request: web.Request) -> web.StreamResponse:
    """The tokens of the prompt that a conversation becomes."""
    asked = await front.read(request, MessagesRequest)
    front.model_name(asked.model)
    front.check_chat()
    chat = conversation_of(chat_request(asked))
    _, ids = await front.link.call(lambda id: Render(id, chat))
    return json_reply(TokenCount(len(ids)))


class MessageReply:
    """The answer to one request in Anthropic's form."""

    def __init__(self, model: str, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._parts = MessageParts()
        self._message = AnswerTurn(
            id=f"msg_{uuid.uuid4().hex}", model=model, content=[], usage=MessagesUsage(0, 0)
        )

    async def whole(self, answer: Answer) -> web.Response:
        """All of it at once."""
        async for piece in answer:
            self._parts.push(piece)
            self._note(piece)
        self._message.content = blocks_of(self._parts, self._shows_thinking)
        return json_reply(self._message)

    async def stream(self, answer: Answer, events: EventStream) -> web.StreamResponse:
        """Event after event; an error is the last one."""
        blocks = GrowingBlocks(self._shows_thinking)
        self._message.usage.input_tokens = sum(answer.n_prompt)
        await _send(events, {"type": "message_start", "message": self._message})
        await events.ping()
        try:
            async for piece in answer:
                for delta in self._parts.push(piece):
                    for event in blocks.events_of(delta):
                        await _send(events, event)
                self._note(piece)
        except ApiError as error:
            return await events.fail(error, "error")
        for event in blocks.end():
            await _send(events, event)
        how = {"stop_reason": self._message.stop_reason, "stop_sequence": self._message.stop_sequence}
        await _send(events, {"type": "message_delta", "delta": how, "usage": self._message.usage})
        await _send(events, {"type": "message_stop"})
        return await events.close()

    def _note(self, piece: Piece) -> None:
        """Take what the last piece says of the whole answer."""
        if piece.finish_reason is None or piece.counts is None:
            return
        is_stop = piece.stop_text is not None
        self._message.stop_reason = "stop_sequence" if is_stop else STOP_REASONS.get(piece.finish_reason, "end_turn")
        self._message.stop_sequence = piece.stop_text
        self._message.usage = usage_of(piece.counts, self._parts.n_reasoning)


def usage_of(counts: Counts, n_reasoning: int) -> MessagesUsage:
    """The tokens of an answer as Anthropic counts them."""
    n_cached = counts.n_cached
    details = OutputTokensDetails(n_reasoning)
    return MessagesUsage(counts.n_prompt - n_cached, counts.n_generated, n_cached, output_tokens_details=details)


async def _send(events: EventStream, event: Event) -> None:
    await events.send(msgspec.to_builtins(event), event=event["type"])
