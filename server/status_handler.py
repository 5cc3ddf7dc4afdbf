"""GET /status: what the server is doing, for people and programs; GET /metrics: the same for Prometheus.

Of several replicas, everything is told as one, with the sums, and each has a row of its own.
"""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

from aiohttp import web

from .errors import ApiError
from .front import Front
from .messages import Status
from .replica_facts import joined_status
from .replicas import Replica
from .reply import json_reply

TIMEOUT_S = 2.0
MODEL_FACTS = ("name", "arch", "path", "n_params", "file_bytes", "n_ctx_train")


async def status(front: Front, request: web.Request) -> web.StreamResponse:
    """Everything: state, model, plan, ranks, transports, slots, queue, prefix cache."""
    link, facts = front.link, front.link.facts
    traffic, options = front.traffic, front.options
    engines = await engine_statuses(front)
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
            "engine": engine_status(engines),
            "replicas": [_row(replica, engines.get(replica.number)) for replica in link.all],
        }
    )  # fmt: skip


def _row(replica: Replica, engine: dict[str, Any] | None) -> dict[str, Any]:
    """One replica."""
    link = replica.link
    return {
        "replica": replica.number,
        "state": _state(replica, engine),
        "reason": link.reason or link.stuck or (engine or {}).get("fault"),
        "progress": round(link.progress, 3),
        "pid": link.pid,
        "devices": [rank["device"] for rank in link.facts.get("plan", ())],
        "n_slots": link.facts.get("n_slots"),
        "n_open": link.n_open,
        "n_routed": replica.n_routed,
        "n_routed_by_prefix": replica.n_by_prefix,
        "n_restarts": link.n_restarts,
        "engine": engine,
    }


def _state(replica: Replica, engine: dict[str, Any] | None) -> str:
    if replica.link.stuck:
        return "stuck"
    if engine is None or engine["state"] == "ready":
        return replica.link.state.value
    state: str = engine["state"]
    return state


async def engine_statuses(front: Front) -> dict[int, dict[str, Any]]:
    """What the engines say of themselves, by replica; without those that do not answer at once."""
    found = await asyncio.gather(*(_asked(replica) for replica in front.link.ready))
    return {number: status for number, status in found if status is not None}


async def _asked(replica: Replica) -> tuple[int, dict[str, Any] | None]:
    try:
        return replica.number, await asyncio.wait_for(replica.link.call(Status), TIMEOUT_S)
    except (ApiError, asyncio.TimeoutError):
        return replica.number, None


def engine_status(engines: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """All engines as one; None where none answers."""
    if list(engines) == [0]:
        return engines[0]
    return joined_status(engines) if engines else None


async def metrics(front: Front, request: web.Request) -> web.StreamResponse:
    """All metrics in the form that the client accepts."""
    front.engine_statuses = await engine_statuses(front)
    body, content_type = front.traffic.metrics.exposition(request.headers.get("Accept", ""))
    return web.Response(body=body, headers={"Content-Type": content_type})
