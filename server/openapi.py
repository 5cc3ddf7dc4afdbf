"""The OpenAPI description, made from the table of routes and the types of requests and answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from aiohttp import web

from .error_forms import error_type
from .route import Route

DESCRIPTION = "OpenAI's, Anthropic's and Ollama's APIs over a GGUF model."


def description(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these routes."""
    types = [t for route in routes for t in (route.takes, route.gives, route.event) if t is not None]
    types = list(dict.fromkeys([*types, *(error_type(route.path) for route in routes)]))
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(types, schemas))
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyggml", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, by_type: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if route.gives is not None:
        content["application/json"] = {"schema": by_type[route.gives]}
    elif route.media is not None:
        content[route.media] = {"schema": {}}
    if route.event is not None:
        content[route.event_media] = {"schema": {}, "x-event": by_type[route.event]}
    good: dict[str, Any] = {"description": "Done"} | ({"content": content} if content else {})
    error_schema = by_type[error_type(route.path)]
    error = {"description": "What went wrong", "content": {"application/json": {"schema": error_schema}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}_{re.sub(r'[^a-z0-9]+', '_', route.path.lower()).strip('_')}",
        "responses": {"200": good, "default": error},
    }
    names = re.findall(r"\{(\w+)\}", route.path)
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
    ] + [{"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query]
    if parameters:
        operation["parameters"] = parameters
    if route.takes is not None:
        body = {"application/json": {"schema": by_type[route.takes]}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def reply_with(document: dict[str, Any]) -> Any:
    """A handler that gives the document."""
    body = msgspec.json.encode(document)

    async def openapi(front: object, request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return openapi
