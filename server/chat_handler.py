"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

import msgspec
from aiohttp import web

from .answer import Answer
from .answered import answered
from .chat_asking import asked_chat
from .errors import ApiError
from .front import Front
from .message_parts import MessageParts
from .messages import Counts, Piece
from .openai_chat import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    ChatRequest,
    ChunkChoice,
)
from .openai_logprobs import ChatLogprobs, chat_logprobs
from .openai_usage import Usage, timings_of, usage_of
from .reply import finish_reason, json_reply
from .sse import EventStream


async def chat_completions(front: Front, request: web.Request) -> web.StreamResponse:
    """Answer a conversation, whole or as a stream."""
    asked = await front.read(request, ChatRequest)
    reply = ChatReply(front, asked)
    generate = asked_chat(front, request, asked)
    return await answered(front, request, generate, reply, EventStream(request, front.options.write_timeout_s))


class ChatReply:
    """The answers to one request in OpenAI's form."""

    def __init__(self, front: Front, asked: ChatRequest) -> None:
        self._asked = asked
        self._n = asked.n or 1
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = front.model_name(asked.model)
        self._fingerprint = front.fingerprint
        self._parts = [MessageParts() for _ in range(self._n)]
        self._counts: dict[int, Counts] = {}

    async def whole(self, answer: Answer) -> web.Response:
        """All of it at once."""
        choices: dict[int, ChatChoice] = {}
        scores: dict[int, list[ChatLogprobs]] = {i: [] for i in range(self._n)}
        async for piece in answer:
            parts = self._parts[piece.index]
            parts.push(piece)
            scores[piece.index].append(self._logprobs(piece) or ChatLogprobs([]))
            if piece.finish_reason is not None:
                self._note(piece)
                choices[piece.index] = self._choice(piece, scores[piece.index])
        counts = self._in_order()
        return json_reply(
            ChatCompletion(
                id=self._id, created=self._created, model=self._model,
                choices=[choices[i] for i in sorted(choices)],
                usage=self._usage(answer), timings=timings_of(counts[0]),
                system_fingerprint=self._fingerprint,
            )
        )  # fmt: skip

    def _choice(self, piece: Piece, scores: Sequence[ChatLogprobs]) -> ChatChoice:
        parts = self._parts[piece.index]
        message = AnswerMessage("assistant", parts.content or (None if parts.tool_calls else ""))
        if parts.reasoning:
            message.reasoning_content = parts.reasoning
        if parts.tool_calls:
            message.tool_calls = parts.tool_calls
        logprobs = ChatLogprobs([e for s in scores for e in s.content]) if self._asked.logprobs else None
        return ChatChoice(piece.index, message, finish_reason(piece), logprobs)

    async def stream(self, answer: Answer, events: EventStream) -> web.StreamResponse:
        """Chunk after chunk; an error is the last event."""
        for index in range(self._n):
            await events.send(self._chunk([ChunkChoice(index, ChatDelta("assistant", ""))]))
        try:
            async for piece in answer:
                for choice in self._chunks(piece):
                    await events.send(self._chunk([choice], piece if choice.finish_reason else None))
        except ApiError as error:
            return await events.fail(error)
        if self._wants_usage:
            await events.send(self._usage_chunk(answer))
        return await events.end()

    def _chunks(self, piece: Piece) -> list[ChunkChoice]:
        parts = self._parts[piece.index]
        deltas = parts.push(piece)
        if piece.finish_reason is not None:
            self._note(piece)
        logprobs = self._logprobs(piece)
        if not deltas and logprobs is not None and logprobs.content:
            deltas = [ChatDelta(content="")]
        choices = [ChunkChoice(piece.index, delta) for delta in deltas]
        if choices:
            choices[0].logprobs = logprobs
        if piece.finish_reason is not None:
            choices.append(ChunkChoice(piece.index, ChatDelta(), finish_reason(piece)))
        return choices

    def _chunk(self, choices: list[ChunkChoice], last: Piece | None = None) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices,
            usage=None if self._wants_usage else msgspec.UNSET, system_fingerprint=self._fingerprint,
        )  # fmt: skip
        if last is not None and last.counts is not None:
            chunk.timings = timings_of(last.counts)
        return chunk

    def _usage_chunk(self, answer: Answer) -> ChatChunk:
        chunk = self._chunk([])
        chunk.usage = self._usage(answer)
        return chunk

    def _usage(self, answer: Answer) -> Usage:
        return usage_of(answer.n_prompt, self._in_order(), sum(parts.n_reasoning for parts in self._parts))

    @property
    def _wants_usage(self) -> bool:
        options = self._asked.stream_options
        return bool(options is not None and options.include_usage)

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if not self._asked.logprobs:
            return None
        return chat_logprobs(piece.scores, self._asked.top_logprobs or 0)

    def _note(self, piece: Piece) -> None:
        assert piece.counts is not None, "the last piece has the counts"
        self._counts[piece.index] = piece.counts

    def _in_order(self) -> list[Counts]:
        return [self._counts[i] for i in sorted(self._counts)]
