"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct

from aiohttp import web

from .front import KEY, RECORD, Front
from .openai_embeddings import REFUSED, Embedding, Embeddings, EmbeddingsRequest, EmbeddingsUsage
from .prompts import prompts_of
from .refusals import refuse
from .reply import json_reply


async def embeddings(front: Front, request: web.Request) -> web.StreamResponse:
    """A vector of each text."""
    asked = await front.read(request, EmbeddingsRequest)
    refuse(asked, REFUSED)
    model = front.model_name(asked.model)
    vectors, n_tokens = await vectors_of(front, request, prompts_of(asked.input, "input"))
    made = [_vector(data, asked.encoding_format == "base64") for data in vectors]
    return json_reply(
        Embeddings([Embedding(i, v) for i, v in enumerate(made)], model, EmbeddingsUsage(n_tokens, n_tokens))
    )


async def vectors_of(
    front: Front, request: web.Request, prompts: list[str | list[int]]
) -> tuple[list[bytes], int]:
    """The vector of each prompt as bytes, and the number of tokens that were read."""
    if not prompts:
        return [], 0
    with front.admitted(request, len(prompts)):
        vectors, n_tokens = await front.link.embed(prompts)
    request[RECORD]["n_prompt"] = n_tokens
    if (key := request.get(KEY)) is not None:
        key.use.add(0, n_tokens)
    return vectors, n_tokens


def _vector(data: bytes, as_base64: bool) -> list[float] | str:
    if as_base64:
        return base64.b64encode(data).decode()
    return numbers_of(data)


def numbers_of(data: bytes) -> list[float]:
    """A vector's numbers."""
    return list(struct.unpack(f"<{len(data) // 4}f", data))
