"""A response that is written piece by piece while its client reads.

While nothing is sent, a ping goes out every 15 s where the form of the stream has one. A client that does not read
within the write timeout is dropped, so that what waits for it stays bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, TypeVar

import msgspec
from aiohttp import web

PING_S = 15.0
S = TypeVar("S", bound="ResponseStream")
_encoder = msgspec.json.Encoder()
_LINE_ENDS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\x85\u2028\u2029")


def encoded_line(value: Any) -> bytes:
    """A value as JSON without characters that some readers of lines stop at."""
    data = _encoder.encode(value)
    for char, escaped in _LINE_ENDS:
        if char in data:
            data = data.replace(char, escaped)
    return data


class ResponseStream:
    """One response: `async with ...`, which sends the headers."""

    def __init__(self, request: web.Request, write_timeout_s: float, content_type: str, ping: bytes = b"") -> None:
        self._request = request
        self._timeout_s = write_timeout_s
        self._ping = ping
        headers = {"Content-Type": content_type, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._response = web.StreamResponse(headers=headers)
        self._response.headers["X-Accel-Buffering"] = "no"
        self._writing_since: float | None = None
        self._written_s = 0.0
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self: S) -> S:
        await self._response.prepare(self._request)
        self._written_s = asyncio.get_running_loop().time()
        self._watch = asyncio.ensure_future(self._watched())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _watched(self) -> None:
        """Send pings while nothing is sent, and drop a client that does not read."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(PING_S, self._timeout_s / 4))
            since, now = self._writing_since, loop.time()
            if since is not None and now - since > self._timeout_s:
                if self._request.transport is not None:
                    self._request.transport.abort()
                return
            if since is None and now - self._written_s >= PING_S and self._ping:
                with contextlib.suppress(ConnectionError):
                    await self.ping()

    async def _write(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        self._writing_since = self._written_s = loop.time()
        try:
            await self._response.write(data)
        finally:
            self._writing_since = None

    async def ping(self) -> None:
        """Send what keeps the connection alive and says nothing."""
        await self._write(self._ping)

    async def close(self) -> web.StreamResponse:
        """Send the end of the response."""
        await self._response.write_eof()
        return self._response
