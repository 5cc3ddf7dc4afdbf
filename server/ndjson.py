"""Streams of JSON objects, one a line."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .error_forms import error_form
from .errors import ApiError
from .response_stream import ResponseStream, encoded_line


class LineStream(ResponseStream):
    """The lines of one response. There is no ping: readers take each line for an object."""

    def __init__(self, request: web.Request, write_timeout_s: float) -> None:
        super().__init__(request, write_timeout_s, "application/x-ndjson")

    async def send(self, value: Any) -> None:
        """Send a value as a line."""
        await self._write(encoded_line(value) + b"\n")

    async def fail(self, error: ApiError) -> web.StreamResponse:
        """Send an error, the last line, and the end of the response."""
        await self.send(error_form(error, self._request.path))
        return await self.close()
