"""What every request passes: its id, its key, its log line; and what every error becomes on the way out."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from .cross_origin import CrossOrigin
from .error_forms import MESSAGES_PATH
from .errors import ApiError, BadRequest, NotFound, ServerFault, TooLarge
from .front import KEY, RECORD, Front
from .reply import error_reply

LOG = logging.getLogger("pyggml.server.access")
FAULTS = logging.getLogger("pyggml.server")
_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gate:
    """The one middleware. `public_paths` need no key."""

    def __init__(self, front: Front, cross_origin: CrossOrigin) -> None:
        self._front = front
        self._cross_origin = cross_origin
        self.public_paths: set[str] = set()

        @web.middleware
        async def handle(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._handle(request, handler)

        self.handle = handle

    async def mark(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add what every response carries."""
        if (record := request.get(RECORD)) is not None:
            response.headers["X-Request-Id"] = record["request_id"]
            if record["path"].startswith(MESSAGES_PATH):  # Anthropic's name for it
                response.headers["Request-Id"] = record["request_id"]
        self._cross_origin.mark(request, response)

    async def _handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        start_s = time.perf_counter()
        record = request[RECORD] = self._record(request)
        status = 499  # the client has left
        try:
            response = await self._answered(request, handler, record)
            status = response.status
            return response
        except ConnectionError:
            record["error"] = "the client has left"
            raise
        finally:
            record["status"] = status
            record["seconds"] = round(time.perf_counter() - start_s, 4)
            resource = request.match_info.route.resource
            self._front.traffic.metrics.responded(resource.canonical if resource else "other", status)
            LOG.info("%s %s %d", request.method, record["path"], status, extra={"record": record})

    def _record(self, request: web.Request) -> dict[str, Any]:
        given = request.headers.get("X-Request-Id", "")
        request_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        return {"request_id": request_id, "method": request.method, "path": request.path[:200]}

    async def _answered(self, request: web.Request, handler: Handler, record: dict[str, Any]) -> web.StreamResponse:
        if (preflight := self._cross_origin.preflight(request)) is not None:
            return preflight
        try:
            if request.path not in self.public_paths:
                key = self._front.keys.find(_secret(request))
                if key is not None:
                    request[KEY] = key
                    record["key"] = key.name
            return await handler(request)
        except ApiError as error:
            return _told(error, record, error.status)
        except web.HTTPException as error:
            return _told(_error_of(error, request), record, error.status)
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            FAULTS.exception("request %s failed", record["request_id"])
            fault = ServerFault(f"internal error; the log has it as request {record['request_id']}", code="internal")
            record["error"] = f"{type(error).__name__}: {error}"
            return error_reply(fault, record["path"])


def _told(error: ApiError, record: dict[str, Any], status: int) -> web.Response:
    record["error"] = error.message
    response = error_reply(error, record["path"])
    response.set_status(status)
    return response


def _error_of(error: web.HTTPException, request: web.Request) -> ApiError:
    """What aiohttp refused, in our form."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return BadRequest(f"{request.method} is not possible on {request.path[:200]}; possible: {allowed}")
    if isinstance(error, web.HTTPNotFound):
        return NotFound(f"there is no path {request.path[:200]}", code="not_found")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return TooLarge(error.text or "the body is too large")
    return BadRequest(error.text or error.reason)


def _secret(request: web.Request) -> str | None:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    return request.headers.get("X-Api-Key")
