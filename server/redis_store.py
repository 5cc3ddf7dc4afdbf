"""Responses in Redis, where several servers share them; also in memory, so that Redis may come and go.

A call of Redis that fails or takes too long costs one warning and the connection's rest for some seconds; the request
goes on with what this server has itself. Nothing but responses is kept there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .errors import StartError
from .response_store import TTL_S, MemoryStore

LOG = logging.getLogger("pyggml.server")
TIMEOUT_S = 0.5
REST_S = 5.0
T = TypeVar("T")


class RedisStore:
    """Responses under `pyggml:response:ID`, for an hour each."""

    def __init__(self, url: str, memory: MemoryStore | None = None) -> None:
        try:
            from redis.asyncio import Redis
        except ModuleNotFoundError as error:
            raise StartError("--redis-url needs the redis library: pip install 'pyggml[redis]'") from error
        try:
            self._redis = Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        except ValueError as error:
            raise StartError(f"--redis-url {url}: {error}") from error
        self._memory = memory or MemoryStore()
        self._away_until_s = 0.0
        self._is_away = False

    async def _ask(self, call: Callable[[], Awaitable[T]]) -> T | None:
        """A call of Redis; None where it is away."""
        from redis.exceptions import RedisError

        if time.monotonic() < self._away_until_s:
            return None
        try:
            result = await asyncio.wait_for(call(), TIMEOUT_S)
        except (RedisError, OSError, asyncio.TimeoutError) as error:
            self._away_until_s = time.monotonic() + REST_S
            if not self._is_away:
                LOG.warning(
                    "Redis is away (%s); responses are kept by this server alone until it is back",
                    str(error) or type(error).__name__,
                )
            self._is_away = True
            return None
        if self._is_away:
            LOG.warning("Redis is back")
        self._is_away = False
        return result

    async def put(self, id: str, data: bytes) -> None:
        """Keep a response here and there."""
        await self._memory.put(id, data)
        await self._ask(lambda: self._redis.set(_key(id), data, ex=TTL_S))

    async def get(self, id: str) -> bytes | None:
        """A response of any of the servers."""
        found = await self._ask(lambda: self._redis.get(_key(id)))
        if found is None:
            return await self._memory.get(id)
        return found.encode() if isinstance(found, str) else found

    async def delete(self, id: str) -> bool:
        """Forget a response here and there."""
        had = await self._memory.delete(id)
        n_deleted: int | None = await self._ask(lambda: self._redis.delete(_key(id)))
        return had or bool(n_deleted)

    async def close(self) -> None:
        """End the connections."""
        await self._ask(self._redis.aclose)


def _key(id: str) -> str:
    return f"pyggml:response:{id}"
