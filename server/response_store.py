"""Finished responses, kept for a while so that they can be fetched and continued.

Bounded by count, bytes and age; the oldest go first. Values are JSON bytes, so what they take is known. Used on the
event loop only.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any, Protocol

import msgspec

TTL_S = 3600
MAX_ENTRIES = 1000
MAX_BYTES = 64 * 2**20


class StoredResponse(msgspec.Struct):
    """A response, the items that it answered, and the whole conversation as messages, its answer included."""

    response: dict[str, Any]
    items: list[dict[str, Any]]
    messages: list[dict[str, Any]]


class ResponseStore(Protocol):
    """Where responses are kept."""

    async def put(self, id: str, data: bytes) -> None:
        """Keep a response."""

    async def get(self, id: str) -> bytes | None:
        """A response; None where it is not known, or too old."""

    async def delete(self, id: str) -> bool:
        """Forget a response; whether it was known."""

    async def close(self) -> None:
        """End connections."""


class MemoryStore:
    """Responses of this server alone."""

    def __init__(self, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES, ttl_s: float = TTL_S) -> None:
        self._max_entries, self._max_bytes, self._ttl_s = max_entries, max_bytes, ttl_s
        self._entries: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self.n_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def put(self, id: str, data: bytes) -> None:
        """Keep a response, and drop the oldest ones beyond the bounds."""
        await self.delete(id)
        self._entries[id] = (time.monotonic(), data)
        self.n_bytes += len(data)
        while self._entries and (len(self._entries) > self._max_entries or self.n_bytes > self._max_bytes):
            _, (_, dropped) = self._entries.popitem(last=False)
            self.n_bytes -= len(dropped)

    async def get(self, id: str) -> bytes | None:
        """A response, unless it is too old."""
        found = self._entries.get(id)
        if found is None:
            return None
        if time.monotonic() - found[0] > self._ttl_s:
            await self.delete(id)
            return None
        return found[1]

    async def delete(self, id: str) -> bool:
        """Forget a response."""
        found = self._entries.pop(id, None)
        if found is not None:
            self.n_bytes -= len(found[1])
        return found is not None

    async def close(self) -> None:
        """Nothing to end."""
