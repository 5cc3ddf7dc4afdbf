"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from .front import Front
from .openai_models import served_models
from .reply import json_reply


async def models(front: Front, request: web.Request) -> web.StreamResponse:
    """All served names."""
    return json_reply(served_models(front.names, front.facts, front.started_s))


async def model(front: Front, request: web.Request) -> web.StreamResponse:
    """One of them."""
    name = front.model_name(request.match_info["id"])
    return json_reply(served_models([name], front.facts, front.started_s).data[0])
