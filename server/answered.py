"""What all protocols do with a request that is ready: have it answered, then write the answer whole or as a stream."""

from __future__ import annotations

from typing import Protocol, TypeVar

from aiohttp import web

from .answer import Answer
from .front import Front
from .messages import Generate
from .response_stream import ResponseStream

S = TypeVar("S", bound=ResponseStream)
S_contra = TypeVar("S_contra", bound=ResponseStream, contravariant=True)


class AnswerForm(Protocol[S_contra]):
    """An answer in the form of a protocol."""

    async def whole(self, answer: Answer) -> web.Response:
        """All of it at once."""

    async def stream(self, answer: Answer, events: S_contra) -> web.StreamResponse:
        """Part after part."""


async def answered(
    front: Front, request: web.Request, asked: Generate, form: AnswerForm[S], events: S
) -> web.StreamResponse:
    """The response to a request. What is wrong with it is raised before a stream begins."""
    with front.answer(request, asked) as answer:
        await answer.accepted()
        if not asked.tells_each:
            return await form.whole(answer)
        async with events:
            return await form.stream(answer, events)
