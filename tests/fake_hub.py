"""A hub of our own on this machine: the parts of the Hugging Face hub's API that downloads need, with faults on demand.

Files of repositories come by a redirect to another host, as the real hub's do. Plain files lie under /files. Answers in
a thread of its own; what was asked is kept for tests to look at.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import quote

from aiohttp import web

COMMIT = "c0ffee" + "0" * 34


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    first_byte: int
    token: str


@dataclass
class FakeHub:
    """Repositories by name, each with contents by path; and files under /files."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # of plain files
    tokens: dict[str, str] = field(default_factory=dict)  # repository -> the token that may read it
    gated: set[str] = field(default_factory=set)  # repositories whose files are listed and not given
    commit: str = COMMIT
    break_after: dict[str, list[int]] = field(default_factory=dict)  # path -> bytes until each break
    wrong: set[str] = field(default_factory=set)  # paths whose content is not what was promised
    has_ranges: bool = True
    has_sizes: bool = True  # whether the list of files has sizes and digests
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def starts(self, path: str) -> list[int]:
        """The first byte of each time that a file was asked for."""
        return [a.first_byte for a in self.asked if a.method == "GET" and a.path.endswith(path)]

    @contextlib.contextmanager
    def serving(self) -> Iterator[FakeHub]:
        """Answer until the end of the block."""
        loop = asyncio.new_event_loop()
        runner = loop.run_until_complete(self._start())
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(30)
            loop.close()

    async def _start(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._note])
        app.router.add_get("/api/models/{owner}/{repo}/revision/{revision:.+}", self._info)
        app.router.add_get("/{owner}/{repo}/resolve/{revision}/{path:.+}", self._resolve)
        app.router.add_get("/cdn/{owner}/{repo}/{path:.+}", self._content)
        app.router.add_get("/files/{path:.+}", self._file)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        return runner

    @web.middleware
    async def _note(self, request: web.Request, handler: object) -> web.StreamResponse:
        first = int(request.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")[0])
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.asked.append(Asked(request.method, request.path, first, token))
        return await handler(request)  # type: ignore[operator, no-any-return]

    def _refusal(self, request: web.Request) -> web.Response | None:
        repo = f"{request.match_info['owner']}/{request.match_info['repo']}"
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo not in self.repos or self.tokens.get(repo, token) != token:
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        if request.match_info["revision"] not in ("main", self.commit):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        return None

    async def _info(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        repo = f"{request.match_info['owner']}/{request.match_info['repo']}"
        siblings = []
        for path, content in self.repos[repo].items():
            sibling: dict[str, object] = {"rfilename": path}
            if self.has_sizes and request.query.get("blobs"):
                sibling |= {"size": len(content), "blobId": "0" * 40}
                sibling["lfs"] = {"sha256": sha256(content), "size": len(content), "pointerSize": 1}
            siblings.append(sibling)
        return web.json_response({"id": repo, "sha": self.commit, "siblings": siblings})

    async def _resolve(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        repo, path = f"{request.match_info['owner']}/{request.match_info['repo']}", request.match_info["path"]
        if repo in self.gated:
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        content = self.repos[repo].get(path)
        if content is None:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {
            "Location": f"http://localhost:{self.port}/cdn/{repo}/{quote(path)}",
            "X-Repo-Commit": self.commit,
            "X-Linked-Etag": f'"{sha256(content)}"',
            "X-Linked-Size": str(len(content)),
        }
        return web.Response(status=302, headers=headers)

    async def _content(self, request: web.Request) -> web.StreamResponse:
        repo, path = f"{request.match_info['owner']}/{request.match_info['repo']}", request.match_info["path"]
        return await self._send(request, path, self.repos[repo][path], {})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = request.match_info["path"]
        if path not in self.files:
            return web.Response(status=404)
        content = self.files[path]
        return await self._send(request, path, content, {"ETag": f'"{sha256(content)[:8]}"'} | self.headers)

    async def _send(
        self, request: web.Request, path: str, content: bytes, headers: dict[str, str]
    ) -> web.StreamResponse:
        if path in self.wrong:
            content = content[:-1] + bytes([content[-1] ^ 1])
        asked = request.http_range if self.has_ranges else slice(None)
        first = asked.start or 0
        if first >= len(content):
            return web.Response(status=416)
        rest = content[first : asked.stop]
        headers = headers | {"Content-Length": str(len(rest))}
        is_part = len(rest) < len(content)
        if is_part:
            headers["Content-Range"] = f"bytes {first}-{first + len(rest) - 1}/{len(content)}"
        response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
        await response.prepare(request)
        breaks = self.break_after.get(path)
        with contextlib.suppress(ConnectionError):  # a client that wanted the headers only
            if breaks:
                await response.write(rest[: breaks.pop(0)])
                await asyncio.sleep(0.05)
                if request.transport is not None:
                    request.transport.close()
            else:
                await response.write(rest)
        return response


@functools.cache
def sha256(content: bytes) -> str:
    """The SHA-256 as digits."""
    return hashlib.sha256(content).hexdigest()
