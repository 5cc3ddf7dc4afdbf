"""CORS: which pages of other origins may read answers, and the answers to their browsers' preflights."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

MAX_AGE_S = "600"


class CrossOrigin:
    """The origins that `--cors` names; `*` stands for all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origin.rstrip("/") for origin in origins)

    def _allowed(self, request: web.BaseRequest) -> str | None:
        origin = request.headers.get("Origin")
        if origin is None or not self._origins:
            return None
        if "*" in self._origins:
            return "*"
        return origin if origin in self._origins else None

    def mark(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the headers by which a browser lets the page read the response."""
        if (origin := self._allowed(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
            if origin != "*":
                response.headers["Vary"] = "Origin"

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a preflight, None for any other request."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        if self._allowed(request) is None:
            return web.Response(status=403)
        asked = request.headers.get("Access-Control-Request-Headers", "")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, DELETE, OPTIONS",
                "Access-Control-Allow-Headers": asked or "Authorization, Content-Type",
                "Access-Control-Max-Age": MAX_AGE_S,
            },
        )
