"""GET /health: whether the server can answer; with ?deep=1 it decodes a token to find out."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from aiohttp import web

from .engine_link import State
from .errors import ApiError
from .front import Front
from .messages import Generate
from .reply import json_reply
from .status_handler import engine_status

DEEP_TIMEOUT_S = 30.0
RECENT_S = 2.0


class Health(msgspec.Struct):
    """How the server is: ok, loading, rebuilding, broken, stopping. `error` is llama-server's, where it is not ok."""

    status: str
    reason: str | None = None
    progress: float | None = None
    error: dict[str, Any] | None = None


async def health(front: Front, request: web.Request) -> web.StreamResponse:
    """200 where requests are answered, else 503 with the reason."""
    if front.is_stopping or front.link.state is not State.READY:
        return _bad(front, front.link.unavailable())
    if request.query.get("deep") in ("1", "true"):
        try:
            await asyncio.wait_for(_decode_one(front), DEEP_TIMEOUT_S)
        except asyncio.TimeoutError:
            return json_reply(Health("broken", f"no token within {DEEP_TIMEOUT_S:g} s"), 503)
        except ApiError as error:
            return _bad(front, error)
    elif (engine := await engine_status(front)) is not None and engine["state"] != "ready":
        fault = engine["fault"] or f"the engine is {engine['state']}"
        return json_reply(Health(engine["state"], fault, error=_error(fault)), 503)
    return json_reply(Health("ok"))


def _error(message: str) -> dict[str, Any]:
    return {"code": 503, "message": message, "type": "unavailable_error"}


def _bad(front: Front, error: ApiError) -> web.Response:
    link = front.link
    status = "stopping" if front.is_stopping else "broken" if link.state is State.READY else link.state.value
    progress = round(link.progress, 3) if link.state is State.LOADING else None
    return json_reply(Health(status, error.message, progress, _error(error.message)), 503)


async def _decode_one(front: Front) -> None:
    """Let the engine decode a token, unless it just did."""
    if time.monotonic() - front.link.last_piece_s < RECENT_S:
        return
    asked = Generate(0, {"max_tokens": 1, "temperature": 0.0}, prompts=[[front.link.facts["probe_id"]]])
    with front.link.generate(asked) as answer:
        async for _ in answer:
            pass
