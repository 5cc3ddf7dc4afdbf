"""GET /status: what the server is doing, for people and programs; GET /metrics: the same for Prometheus."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from aiohttp import web

from .engine_link import State
from .errors import ApiError
from .front import Front
from .messages import Status
from .reply import json_reply

TIMEOUT_S = 2.0
MODEL_FACTS = ("name", "arch", "path", "n_params", "file_bytes", "n_ctx_train")


async def status(front: Front, request: web.Request) -> web.StreamResponse:
    """Everything: state, model, plan, ranks, transports, slots, queue, prefix cache."""
    link, facts = front.link, front.link.facts
    traffic, options = front.traffic, front.options
    return json_reply(
        {
            "state": "stopping" if front.is_stopping else link.state.value,
            "reason": link.reason or None,
            "uptime_s": round(time.time() - front.started_s, 1),
            "n_restarts": link.n_restarts,
            "names": front.names,
            "model": {name: facts.get(name) for name in MODEL_FACTS},
            "n_ctx": facts.get("n_ctx"),
            "n_slots": facts.get("n_slots"),
            "max_queued": options.max_queued,
            "n_open": traffic.n_open,
            "n_finished": traffic.n_finished,
            "capabilities": facts.get("capabilities", []),
            "notes": facts.get("notes", []),
            "plan": facts.get("plan", []),
            "sampling": dict(options.sampling),
            "max_tokens": options.max_tokens,
            "front_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "engine": await engine_status(front),
        }
    )  # fmt: skip


async def engine_status(front: Front) -> dict[str, Any] | None:
    """What the engine says of itself; None where it does not answer at once."""
    if front.link.state is not State.READY:
        return None
    try:
        found: dict[str, Any] = await asyncio.wait_for(front.link.call(Status), TIMEOUT_S)
    except (ApiError, asyncio.TimeoutError):
        return None
    return found


async def metrics(front: Front, request: web.Request) -> web.StreamResponse:
    """All metrics in the form that the client accepts."""
    front.engine_status = await engine_status(front)
    body, content_type = front.traffic.metrics.exposition(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})
