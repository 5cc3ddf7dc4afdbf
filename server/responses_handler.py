"""/v1/responses: answers that are kept and can be continued, and the paths that fetch and delete them."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from .answer import Answer
from .errors import ApiError, NotFound
from .front import Front
from .message_parts import MessageParts
from .messages import Counts, Generate, Piece
from .openai_responses import (
    REFUSED,
    DeletedResponse,
    InputDetails,
    ItemList,
    OutputDetails,
    Response,
    ResponsesRequest,
    ResponseUsage,
)
from .refusals import refuse
from .reply import json_reply
from .response_asking import asked_response
from .response_items import items_of, messages_of
from .response_output import Event, ResponseOutput
from .response_store import StoredResponse
from .sse import EventStream

_encoder = msgspec.json.Encoder()


async def create(front: Front, request: web.Request) -> web.StreamResponse:
    """Answer, whole or as events; keep the response unless told not to."""
    asked = await front.read(request, ResponsesRequest)
    refuse(asked, REFUSED)
    model = front.model_name(asked.model)
    before = await _messages_before(front, asked.previous_response_id)
    items = items_of(asked.input)
    messages = [*before, *messages_of(items)]
    generate = asked_response(front, request, asked, messages)
    reply = ResponseReply(asked, model, generate, items, messages)
    with front.answer(request, generate) as answer:
        await answer.accepted()
        if asked.stream:
            async with EventStream(request, front.options.write_timeout_s) as events:
                return await reply.stream(answer, events, front)
        async for piece in answer:
            for _ in reply.events_of(piece):
                pass
    response = reply.finished(answer)
    await reply.keep(front, response)
    return json_reply(response)


async def _messages_before(front: Front, previous_id: str | None) -> list[dict[str, Any]]:
    return [] if previous_id is None else (await _stored(front, previous_id, "previous_response_id")).messages


async def _stored(front: Front, id: str, param: str | None = None) -> StoredResponse:
    data = await front.store.get(id)
    if data is None:
        raise NotFound(
            f"the response {id[:100]!r} is not kept here; responses are kept for an hour", param=param,
            code="response_not_found",
        )  # fmt: skip
    return msgspec.json.decode(data, type=StoredResponse)


async def get(front: Front, request: web.Request) -> web.StreamResponse:
    """A kept response."""
    return json_reply((await _stored(front, request.match_info["id"])).response)


async def get_items(front: Front, request: web.Request) -> web.StreamResponse:
    """The items that a kept response answered."""
    items = (await _stored(front, request.match_info["id"])).items
    ids = [str(item.get("id")) if item.get("id") else None for item in items]
    return json_reply(ItemList(items, ids[0], ids[-1]))


async def delete(front: Front, request: web.Request) -> web.StreamResponse:
    """Forget a kept response."""
    id = request.match_info["id"]
    if not await front.store.delete(id):
        raise NotFound(f"the response {id[:100]!r} is not kept here", code="response_not_found")
    return json_reply(DeletedResponse(id))


class ResponseReply:
    """One response on its way: its output, then itself."""

    def __init__(
        self, asked: ResponsesRequest, model: str, generate: Generate,
        items: list[dict[str, Any]], messages: list[dict[str, Any]],
    ) -> None:  # fmt: skip
        self._asked, self._model, self._generate = asked, model, generate
        self._items, self._messages = items, messages
        self._parts = MessageParts()
        self._output = ResponseOutput((asked.top_logprobs or 0) if asked.wants_logprobs else None)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._numbers = itertools.count()
        self._counts: Counts | None = None
        self._reason = ""

    def events_of(self, piece: Piece) -> Iterator[Event]:
        """What a piece adds to the output."""
        deltas = self._parts.push(piece)
        if piece.finish_reason is not None:
            self._reason, self._counts = piece.finish_reason, piece.counts
        scores = piece.scores
        for delta in deltas:
            yield from self._output.add(delta, scores)
            scores = []
        if piece.finish_reason is not None:
            yield from self._output.end("incomplete" if self._is_cut else "completed")

    @property
    def _is_cut(self) -> bool:
        return self._reason in ("length", "time")

    async def stream(self, answer: Answer, events: EventStream, front: Front) -> web.StreamResponse:
        """Event after event; the last has the whole response."""
        for name in ("created", "in_progress"):
            await self._send(events, {"type": f"response.{name}", "response": self._response("in_progress")})
        try:
            async for piece in answer:
                for event in self.events_of(piece):
                    await self._send(events, event)
        except ApiError as error:
            response = self._response("failed")
            response.error = {"code": error.code or "server_error", "message": error.message}
            await self._send(events, {"type": "response.failed", "response": response})
            return await events.close()
        response = self.finished(answer)
        await self.keep(front, response)
        await self._send(events, {"type": f"response.{response.status}", "response": response})
        return await events.close()

    async def _send(self, events: EventStream, event: Event) -> None:
        await events.send(event | {"sequence_number": next(self._numbers)}, event=event["type"])

    def finished(self, answer: Answer) -> Response:
        """The response after its last piece."""
        assert self._counts is not None, "the last piece has the counts"
        response = self._response("incomplete" if self._is_cut else "completed")
        if self._is_cut:
            response.incomplete_details = {"reason": "max_output_tokens"}
        n_in, n_out = self._counts.n_prompt, self._counts.n_generated
        response.usage = ResponseUsage(
            n_in, InputDetails(self._counts.n_cached), n_out, OutputDetails(self._parts.n_reasoning), n_in + n_out
        )
        return response

    def _response(self, status: str) -> Response:
        asked, sampling = self._asked, self._generate.sampling
        effort = None if asked.reasoning is None else asked.reasoning.effort
        return Response(
            id=self._id, created_at=self._created, status=status, instructions=asked.instructions,
            max_output_tokens=asked.asked_tokens(), metadata=asked.metadata or {}, model=self._model,
            output=self._output.items, parallel_tool_calls=asked.parallel_tool_calls is not False,
            previous_response_id=asked.previous_response_id, reasoning={"effort": effort, "summary": None},
            store=asked.store is not False, temperature=sampling.get("temperature"),
            text={"format": (asked.text and asked.text.format) or {"type": "text"}},
            tool_choice=asked.tool_choice or "auto", tools=asked.tools or [], top_p=sampling.get("top_p"),
        )  # fmt: skip

    async def keep(self, front: Front, response: Response) -> None:
        """Store the response unless the client did not want that."""
        if self._asked.store is False:
            return
        said = self._parts.message()
        stored = StoredResponse(msgspec.to_builtins(response), self._items, [*self._messages, said])
        await front.store.put(self._id, _encoder.encode(stored))
