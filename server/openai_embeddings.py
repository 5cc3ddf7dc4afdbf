"""The request and the answer of /v1/embeddings."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

REFUSED: dict[str, tuple[Any, ...]] = {"dimensions": ()}
IGNORED = ("user",)


class EmbeddingsRequest(msgspec.Struct):
    """Texts or token ids, as /v1/completions takes them."""

    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Any = None


class Embedding(msgspec.Struct):
    """A vector of length 1: numbers, or float32 bytes (little-endian) as base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingsUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct):
    """The vectors in the order of the texts."""

    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage
    object: str = "list"
