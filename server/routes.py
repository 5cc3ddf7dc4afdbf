"""The paths of the server: what each takes and gives, for the router and for the API description alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from . import chat_handler, completion_handler, health_handler, models_handler
from .front import Front
from .openai_chat import ChatChunk, ChatCompletion, ChatRequest
from .openai_completion import Completion, CompletionRequest
from .openai_models import ModelList, ServedModel

Handler = Callable[[Front, web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Route:
    """A method and path. `aliases` are llama-server's other paths for it, `event` is what a stream of it sends."""

    method: str
    path: str
    handler: Handler
    summary: str
    takes: Any = None
    gives: Any = None
    event: Any = None
    aliases: tuple[str, ...] = ()
    is_public: bool = False
    query: tuple[str, ...] = ()


ROUTES = (
    Route("POST", "/v1/chat/completions", chat_handler.chat_completions, "Answer a conversation",
          ChatRequest, ChatCompletion, ChatChunk, ("/chat/completions",)),
    Route("POST", "/v1/completions", completion_handler.completions, "Continue prompts",
          CompletionRequest, Completion, Completion, ("/completions",)),
    Route("GET", "/v1/models", models_handler.models, "The served names", gives=ModelList, aliases=("/models",)),
    Route("GET", "/v1/models/{id}", models_handler.model, "One served name", gives=ServedModel),
    Route("GET", "/health", health_handler.health, "Whether requests are answered",
          gives=health_handler.Health, aliases=("/v1/health",), is_public=True, query=("deep",)),
)  # fmt: skip
