"""The paths of the server, for the router and for the API description alike."""

from __future__ import annotations

from . import (
    anthropic_handler,
    chat_handler,
    completion_handler,
    embeddings_handler,
    health_handler,
    models_handler,
    ollama_handler,
    ollama_models_handler,
    responses_handler,
    status_handler,
    text_handler,
)
from .anthropic_messages import AnswerTurn, MessagesRequest, TokenCount
from .ollama_chat import ChatLine, GenerateLine, OllamaChatRequest, OllamaGenerateRequest
from .ollama_embeddings import EmbedReply, EmbedRequest, OldEmbedReply, OldEmbedRequest
from .ollama_models import Shown, ShowRequest, TagList, Version
from .openai_chat import ChatChunk, ChatCompletion, ChatRequest
from .openai_completion import Completion, CompletionRequest
from .openai_embeddings import Embeddings, EmbeddingsRequest
from .openai_models import ModelList, ServedModel
from .openai_responses import DeletedResponse, ItemList, Response, ResponsesRequest
from .openapi import description, reply_with
from .route import Route
from .text_tokens import Content, DetokenizeRequest, Prompt, TemplateRequest, TokenizeRequest, Tokens

NDJSON = "application/x-ndjson"
_ROUTES = (
    Route("POST", "/v1/chat/completions", chat_handler.chat_completions, "Answer a conversation",
          ChatRequest, ChatCompletion, ChatChunk, ("/chat/completions",)),
    Route("POST", "/v1/completions", completion_handler.completions, "Continue prompts",
          CompletionRequest, Completion, Completion, ("/completions",)),
    Route("POST", "/v1/responses", responses_handler.create, "Answer, and keep the response",
          ResponsesRequest, Response, dict, ("/responses",)),
    Route("GET", "/v1/responses/{id}", responses_handler.get, "A kept response", gives=Response),
    Route("DELETE", "/v1/responses/{id}", responses_handler.delete, "Forget it", gives=DeletedResponse),
    Route("GET", "/v1/responses/{id}/input_items", responses_handler.get_items, "What it answered", gives=ItemList),
    Route("POST", "/v1/embeddings", embeddings_handler.embeddings, "A vector of each text",
          EmbeddingsRequest, Embeddings, aliases=("/embeddings",)),
    Route("GET", "/v1/models", models_handler.models, "The served names", gives=ModelList, aliases=("/models",)),
    Route("GET", "/v1/models/{id}", models_handler.model, "One served name", gives=ServedModel),
    Route("POST", "/v1/messages", anthropic_handler.messages, "Answer a conversation, in Anthropic's form",
          MessagesRequest, AnswerTurn, dict),
    Route("POST", "/v1/messages/count_tokens", anthropic_handler.count_tokens, "The tokens of a prompt",
          MessagesRequest, TokenCount),
    Route("POST", "/api/chat", ollama_handler.chat, "Answer a conversation, in Ollama's form",
          OllamaChatRequest, ChatLine, ChatLine, event_media=NDJSON),
    Route("POST", "/api/generate", ollama_handler.generate, "Answer a prompt, or continue it",
          OllamaGenerateRequest, GenerateLine, GenerateLine, event_media=NDJSON),
    Route("POST", "/api/embed", ollama_models_handler.embed, "A vector of each text", EmbedRequest, EmbedReply),
    Route("POST", "/api/embeddings", ollama_models_handler.old_embed, "A vector of a text",
          OldEmbedRequest, OldEmbedReply),
    Route("POST", "/api/show", ollama_models_handler.show, "What the model is", ShowRequest, Shown),
    Route("GET", "/api/tags", ollama_models_handler.tags, "The served names", gives=TagList),
    Route("GET", "/api/ps", ollama_models_handler.running, "The loaded models", gives=TagList),
    Route("GET", "/api/version", ollama_models_handler.version, "The version of Ollama's API", gives=Version),
    Route("POST", "/tokenize", text_handler.tokenize, "The tokens of a text", TokenizeRequest, Tokens),
    Route("POST", "/detokenize", text_handler.detokenize, "The text of tokens", DetokenizeRequest, Content),
    Route("POST", "/apply-template", text_handler.apply_template, "The prompt that a conversation becomes",
          TemplateRequest, Prompt),
    Route("GET", "/health", health_handler.health, "Whether requests are answered",
          gives=health_handler.Health, aliases=("/v1/health",), is_public=True, query=("deep",)),
    Route("GET", "/status", status_handler.status, "State, model, plan, ranks, slots", media="application/json"),
    Route("GET", "/metrics", status_handler.metrics, "Metrics for Prometheus", media="text/plain"),
)  # fmt: skip


def make_routes(version: str) -> tuple[Route, ...]:
    """All routes, the API description's own among them."""
    document = description(_ROUTES, version)
    own = Route("GET", "/openapi.json", reply_with(document), "This description", media="application/json")
    return (*_ROUTES, own)
