"""POST /tokenize, /detokenize and /apply-template."""

from __future__ import annotations

from aiohttp import web

from .front import Front
from .messages import Chat, Detokenize, Render, Tokenize
from .reply import json_reply
from .text_tokens import (
    Content,
    DetokenizeRequest,
    Prompt,
    TemplateRequest,
    TokenizeRequest,
    Tokens,
    piece_of,
)


async def tokenize(front: Front, request: web.Request) -> web.StreamResponse:
    """The tokens of a text."""
    asked = await front.read(request, TokenizeRequest)
    ids, data = await front.link.call(
        lambda id: Tokenize(id, asked.content, bool(asked.add_special), asked.parse_special is not False)
    )
    return json_reply(Tokens([piece_of(*pair) for pair in zip(ids, data)] if asked.with_pieces else ids))


async def detokenize(front: Front, request: web.Request) -> web.StreamResponse:
    """The text of tokens."""
    asked = await front.read(request, DetokenizeRequest)
    return json_reply(Content(await front.link.call(lambda id: Detokenize(id, asked.tokens))))


async def apply_template(front: Front, request: web.Request) -> web.StreamResponse:
    """The prompt that a conversation becomes."""
    asked = await front.read(request, TemplateRequest)
    chat = Chat(asked.messages, tools=asked.tools, variables=asked.chat_template_kwargs or {})
    text, ids = await front.link.call(lambda id: Render(id, chat))
    return json_reply(Prompt(text, len(ids)))
