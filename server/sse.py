"""Server-sent events, in OpenAI's form or with names."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .error_forms import error_form
from .errors import ApiError
from .response_stream import ResponseStream, encoded_line

COMMENT = b": ping\n\n"


class EventStream(ResponseStream):
    """The events of one response."""

    def __init__(self, request: web.Request, write_timeout_s: float, ping: bytes = COMMENT) -> None:
        super().__init__(request, write_timeout_s, "text/event-stream; charset=utf-8", ping)

    async def send(self, value: Any, event: str | None = None) -> None:
        """Send a value as JSON."""
        name = b"" if event is None else b"event: " + event.encode() + b"\n"
        await self._write(name + b"data: " + encoded_line(value) + b"\n\n")

    async def fail(self, error: ApiError, event: str | None = None) -> web.StreamResponse:
        """Send an error, the last event, and the end of the response."""
        await self.send(error_form(error, self._request.path), event)
        return await self.close()

    async def end(self) -> web.StreamResponse:
        """Send OpenAI's last line and the end of the response."""
        await self._write(b"data: [DONE]\n\n")
        return await self.close()
