"""GET /api/tags, /api/ps and /api/version, POST /api/show, /api/embed and /api/embeddings."""

from __future__ import annotations

import time

from aiohttp import web

from .embeddings_handler import numbers_of, vectors_of
from .front import Front
from .ollama_asking import model_name
from .ollama_embeddings import REFUSED, EmbedReply, EmbedRequest, OldEmbedReply, OldEmbedRequest
from .ollama_models import ShowRequest, TagList, Version, running_of, shown_of, tag_of, told_time
from .refusals import refuse
from .reply import json_reply


async def tags(front: Front, request: web.Request) -> web.StreamResponse:
    """All served names."""
    found = [tag_of(name, front.facts) for name in front.names]
    for tag in found:
        tag.modified_at = told_time(front.facts["modified_s"])
    return json_reply(TagList(found))


async def running(front: Front, request: web.Request) -> web.StreamResponse:
    """The same, all of which are loaded."""
    return json_reply(TagList([running_of(name, front.facts) for name in front.names]))


async def show(front: Front, request: web.Request) -> web.StreamResponse:
    """Everything about the model."""
    asked = await front.read(request, ShowRequest)
    model_name(front, asked.model or asked.name)
    return json_reply(shown_of(front.facts, front.options.sampling))


async def version(front: Front, request: web.Request) -> web.StreamResponse:
    """Whose API this is."""
    return json_reply(Version())


async def embed(front: Front, request: web.Request) -> web.StreamResponse:
    """A vector of each text."""
    start_s = time.perf_counter()
    asked = await front.read(request, EmbedRequest)
    refuse(asked, REFUSED)
    model = model_name(front, asked.model)
    texts = [asked.input] if isinstance(asked.input, str) else asked.input
    vectors, n_tokens = await vectors_of(front, request, list(texts))
    return json_reply(
        EmbedReply(
            model=model, embeddings=[numbers_of(vector) for vector in vectors], prompt_eval_count=n_tokens,
            total_duration=int((time.perf_counter() - start_s) * 1e9),
        )
    )  # fmt: skip


async def old_embed(front: Front, request: web.Request) -> web.StreamResponse:
    """A vector of one text, none for no text."""
    asked = await front.read(request, OldEmbedRequest)
    model_name(front, asked.model)
    vectors, _ = await vectors_of(front, request, [asked.prompt] if asked.prompt else [])
    return json_reply(OldEmbedReply(numbers_of(vectors[0]) if vectors else []))
