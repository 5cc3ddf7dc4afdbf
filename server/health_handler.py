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
from .replicas import Replica
from .reply import json_reply
from .status_handler import engine_statuses

DEEP_TIMEOUT_S = 30.0
RECENT_S = 2.0


class Health(msgspec.Struct):
    """How the server is: ok, degraded, loading, rebuilding, broken, stopping.

    `error` is llama-server's, where nothing is answered. Degraded: some replicas do not answer, or one seems to hang.
    """

    status: str
    reason: str | None = None
    progress: float | None = None
    error: dict[str, Any] | None = None


async def health(front: Front, request: web.Request) -> web.StreamResponse:
    """200 where requests are answered, by one replica at least, else 503 with the reason."""
    link = front.link
    if front.is_stopping or link.state is not State.READY:
        return _bad(front, link.unavailable())
    if request.query.get("deep") in ("1", "true"):
        found = await asyncio.gather(*(_deep_trouble(replica) for replica in link.ready))
        troubles = [trouble for trouble in found if trouble]
        state = "broken"
    else:
        engines = await engine_statuses(front)
        ill = {number: engine for number, engine in engines.items() if engine["state"] != "ready"}
        troubles = [engine["fault"] or f"the engine is {engine['state']}" for engine in ill.values()]
        state = next((engine["state"] for engine in ill.values()), "broken")
    if troubles and len(troubles) == len(link.ready):
        return json_reply(Health(state, "; ".join(troubles), error=_error("; ".join(troubles))), 503)
    if troubles or link.reason:
        return json_reply(Health("degraded", "; ".join([text for text in (link.reason, *troubles) if text])))
    return json_reply(Health("ok"))


async def _deep_trouble(replica: Replica) -> str:
    """Why a replica makes no token; empty where it does."""
    try:
        await asyncio.wait_for(_decode_one(replica), DEEP_TIMEOUT_S)
    except asyncio.TimeoutError:
        return f"no token within {DEEP_TIMEOUT_S:g} s"
    except ApiError as error:
        return error.message
    return ""


def _error(message: str) -> dict[str, Any]:
    return {"code": 503, "message": message, "type": "unavailable_error"}


def _bad(front: Front, error: ApiError) -> web.Response:
    link = front.link
    status = "stopping" if front.is_stopping else "broken" if link.state is State.READY else link.state.value
    progress = round(link.progress, 3) if link.state is State.LOADING else None
    return json_reply(Health(status, error.message, progress, _error(error.message)), 503)


async def _decode_one(replica: Replica) -> None:
    """Let an engine decode a token, unless it just did."""
    link = replica.link
    if time.monotonic() - link.last_piece_s < RECENT_S:
        return
    asked = Generate(0, {"max_tokens": 1, "temperature": 0.0}, prompts=[[link.facts["probe_id"]]])
    with link.generate(asked) as answer:
        async for _ in answer:
            pass
