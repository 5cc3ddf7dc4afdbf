"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec
from aiohttp import web

from .answer import Answer
from .answered import answered
from .errors import ApiError
from .form_fields import form_of
from .front import Front
from .messages import Counts, Generate, Piece, TokenScore
from .openai_completion import REFUSED, Completion, CompletionChoice, CompletionRequest
from .openai_logprobs import CompletionLogprobs, completion_logprobs
from .openai_usage import timings_of, usage_of
from .prompts import prompts_of
from .refusals import refuse
from .reply import finish_reason, json_reply
from .sse import EventStream


async def completions(front: Front, request: web.Request) -> web.StreamResponse:
    """Continue a prompt or several, whole or as a stream."""
    asked = await front.read(request, CompletionRequest)
    reply = CompletionReply(front, asked)
    generate = asked_completion(front, request, asked)
    return await answered(front, request, generate, reply, EventStream(request, front.options.write_timeout_s))


def asked_completion(front: Front, request: web.Request, asked: CompletionRequest) -> Generate:
    """The engine's part of the request. Raises BadRequest."""
    refuse(asked, REFUSED)
    sampling = front.sampling(request, asked.chosen(front.options.sampling, front.options.max_tokens))
    if asked.logprobs is not None:
        sampling["logprobs"] = asked.logprobs
    sampling |= form_of(asked)
    wants_scores = bool(asked.echo) and asked.logprobs is not None
    return Generate(
        0, sampling, prompts=prompts_of(asked.prompt), n=asked.n or 1, tells_each=bool(asked.stream),
        prompt_logprobs=asked.logprobs if wants_scores else None, echoes=bool(asked.echo),
        cache_prompt=asked.cache_prompt is not False,
    )  # fmt: skip


class CompletionReply:
    """The answers to one request in OpenAI's form. With `echo` the prompt comes before its answer."""

    def __init__(self, front: Front, asked: CompletionRequest) -> None:
        self._asked = asked
        self._id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = front.model_name(asked.model)
        self._fingerprint = front.fingerprint
        self._offsets: dict[int, int] = {}
        self._counts: dict[int, Counts] = {}

    async def whole(self, answer: Answer) -> web.Response:
        """All of it at once."""
        choices: dict[int, CompletionChoice] = {}
        async for piece in answer:
            part = self._choice(piece)
            so_far = choices.setdefault(piece.index, part)
            if so_far is not part:
                so_far.text += part.text
                so_far.finish_reason = part.finish_reason
                _extend(so_far.logprobs, part.logprobs)
        body = self._body([choices[i] for i in sorted(choices)])
        body.usage, body.timings = usage_of(answer.n_prompt, self._in_order()), timings_of(self._in_order()[0])
        return json_reply(body)

    async def stream(self, answer: Answer, events: EventStream) -> web.StreamResponse:
        """Chunk after chunk; an error is the last event."""
        try:
            async for piece in answer:
                choice = self._choice(piece)
                has_more = choice.text or choice.finish_reason or (choice.logprobs and choice.logprobs.tokens)
                if has_more:
                    await events.send(self._body([choice], self._no_usage))
        except ApiError as error:
            return await events.fail(error)
        if self._no_usage is None:
            await events.send(self._body([], usage_of(answer.n_prompt, self._in_order())))
        return await events.end()

    @property
    def _no_usage(self) -> Any:
        """What chunks carry for usage: null where the last one will have it."""
        options = self._asked.stream_options
        return None if options is not None and options.include_usage else msgspec.UNSET

    def _choice(self, piece: Piece) -> CompletionChoice:
        text, scores = piece.text, piece.scores
        if piece.prompt is not None:
            text, scores = piece.prompt.text + text, [*piece.prompt.scores, *scores]
        if piece.counts is not None:
            self._counts[piece.index] = piece.counts
        reason = None if piece.finish_reason is None else finish_reason(piece)
        return CompletionChoice(piece.index, text, reason, self._logprobs(piece.index, scores))

    def _logprobs(self, index: int, scores: list[TokenScore]) -> CompletionLogprobs | None:
        if self._asked.logprobs is None:
            return None
        offset = self._offsets.get(index, 0)
        result = completion_logprobs(scores, self._asked.logprobs, offset)
        self._offsets[index] = offset + sum(map(len, result.tokens))
        return result

    def _body(self, choices: list[CompletionChoice], usage: Any = msgspec.UNSET) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage,
            system_fingerprint=self._fingerprint,
        )  # fmt: skip

    def _in_order(self) -> list[Counts]:
        return [self._counts[i] for i in sorted(self._counts)]


def _extend(logprobs: CompletionLogprobs | None, more: CompletionLogprobs | None) -> None:
    if logprobs is not None and more is not None:
        logprobs.tokens += more.tokens
        logprobs.token_logprobs += more.token_logprobs
        logprobs.top_logprobs += more.top_logprobs
        logprobs.text_offset += more.text_offset
