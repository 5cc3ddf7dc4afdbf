"""One path of the server: what it takes, what it gives, who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from .front import Front

Handler = Callable[[Front, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """A method and path. `aliases` are llama-server's other paths for it, `event` is what a stream of it sends.

    `media` is the content type of an answer that is no JSON of a known type.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    takes: Any = None
    gives: Any = None
    event: Any = None
    aliases: tuple[str, ...] = ()
    is_public: bool = False
    query: tuple[str, ...] = ()
    media: str | None = None
    event_media: str = "text/event-stream"
