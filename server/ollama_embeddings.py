"""The requests and the answers of /api/embed and of its older form, /api/embeddings."""

from __future__ import annotations

from typing import Any

import msgspec

REFUSED: dict[str, tuple[Any, ...]] = {"dimensions": (0,)}


class EmbedRequest(msgspec.Struct):
    """One text or several."""

    input: str | list[str]
    model: str | None = None
    dimensions: Any = None


class EmbedReply(msgspec.Struct, kw_only=True):
    """A vector of length 1 for each text. Times are in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int = 0
    prompt_eval_count: int


class OldEmbedRequest(msgspec.Struct):
    """One text."""

    prompt: str = ""
    model: str | None = None


class OldEmbedReply(msgspec.Struct):
    """Its vector."""

    embedding: list[float]
