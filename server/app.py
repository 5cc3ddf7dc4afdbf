"""The aiohttp application: every request passes the same gate, then goes to its route's handler."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Awaitable, Callable

from aiohttp import web

from .cross_origin import CrossOrigin
from .engine_metrics import engine_metrics
from .front import Front
from .gate import Gate
from .page_handler import page_routes
from .route import Route
from .routes import make_routes


def version() -> str:
    """The installed version."""
    try:
        return importlib.metadata.version("pyggml")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def make_app(front: Front) -> web.Application:
    """The application of a server."""
    front.traffic.metrics.add_source(lambda: engine_metrics(front))
    gate = Gate(front, CrossOrigin(front.options.cors))
    app = web.Application(middlewares=[gate.handle], client_max_size=front.options.max_body_bytes)
    app.on_response_prepare.append(gate.mark)
    for route in (*make_routes(version()), *page_routes(front.options.webui)):
        for path in (route.path, *route.aliases):
            resource = app.router.add_resource(path)
            resource.add_route(route.method, _bound(front, route))
            if route.method == "GET":
                resource.add_route("HEAD", _bound(front, route))
            if route.is_public:
                gate.public_paths.add(path)
    return app


def _bound(front: Front, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.handler(front, request)

    return handle
