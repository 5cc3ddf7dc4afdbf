"""POST /api/chat and /api/generate."""

from __future__ import annotations

from aiohttp import web

from .answered import answered
from .chat_asking import asked_chat
from .completion_handler import asked_completion
from .front import Front
from .messages import Generate
from .ndjson import LineStream
from .ollama_asking import chat_request, model_name, prompt_request, raw_request
from .ollama_chat import OllamaChatRequest, OllamaGenerateRequest
from .ollama_reply import OllamaReply, chat_line, generate_line


async def chat(front: Front, request: web.Request) -> web.StreamResponse:
    """Answer a conversation, in lines or whole."""
    asked = await front.read(request, OllamaChatRequest)
    reply = OllamaReply(model_name(front, asked.model), asked, chat_line)
    if not asked.messages:
        return reply.loaded()
    return await _answered(front, request, asked_chat(front, request, chat_request(front, asked)), reply)


async def generate(front: Front, request: web.Request) -> web.StreamResponse:
    """Answer a prompt, or continue it as it is, in lines or whole."""
    asked = await front.read(request, OllamaGenerateRequest)
    reply = OllamaReply(model_name(front, asked.model), asked, generate_line)
    if not asked.prompt:
        return reply.loaded()
    if asked.raw:
        generate = asked_completion(front, request, raw_request(front, asked))
    else:
        generate = asked_chat(front, request, prompt_request(front, asked))
    return await _answered(front, request, generate, reply)


async def _answered(
    front: Front, request: web.Request, asked: Generate, reply: OllamaReply
) -> web.StreamResponse:
    return await answered(front, request, asked, reply, LineStream(request, front.options.write_timeout_s))
