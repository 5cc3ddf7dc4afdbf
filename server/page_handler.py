"""The page at /, made of files in page/ and of nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from .front import Front
from .route import Handler, Route

FOLDER = Path(__file__).with_name("page")
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"


def _file(name: str) -> Handler:
    """A handler that gives a file of the page."""
    body = (FOLDER / name).read_bytes()
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}

    async def give(front: Front, request: web.Request) -> web.StreamResponse:
        return web.Response(
            body=body, content_type=TYPES[Path(name).suffix], charset="utf-8", headers=headers
        )

    return give


async def alive(front: Front, request: web.Request) -> web.StreamResponse:
    """What / says where there is no page."""
    return web.Response(text="pyggml is running; the API is at /v1\n")


def page_routes(has_page: bool) -> tuple[Route, ...]:
    """The page's paths, which need no key; its calls do."""
    if not has_page:
        return (Route("GET", "/", alive, "That the server runs", is_public=True, media="text/plain"),)
    found = [Route("GET", "/", _file("index.html"), "The page", is_public=True, media="text/html")]
    for name in ("page.css", "page.js", "status.js"):
        found.append(Route("GET", f"/page/{name}", _file(name), "Its part", is_public=True, media="text/plain"))
    return tuple(found)
