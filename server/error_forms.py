"""The shapes of errors on the way out: OpenAI's, and on the paths of Anthropic's and Ollama's APIs theirs."""

from __future__ import annotations

import msgspec

from .errors import ApiError

MESSAGES_PATH = "/v1/messages"
OLLAMA_PATHS = "/api/"
_MESSAGES_TYPES = {
    401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    500: "api_error", 503: "overloaded_error",
}  # fmt: skip


class ErrorBody(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None = None
    code: str | int | None = None


class ErrorReply(msgspec.Struct):
    """The body of every response that is no success."""

    error: ErrorBody


class MessagesErrorBody(msgspec.Struct):
    """What went wrong, in Anthropic's words."""

    type: str
    message: str


class MessagesErrorReply(msgspec.Struct):
    """Anthropic's form of an error."""

    error: MessagesErrorBody
    type: str = "error"


class OllamaErrorReply(msgspec.Struct):
    """Ollama's form of an error."""

    error: str


def error_type(path: str) -> type[msgspec.Struct]:
    """The type of the errors of a path."""
    if path.startswith(MESSAGES_PATH):
        return MessagesErrorReply
    return OllamaErrorReply if path.startswith(OLLAMA_PATHS) else ErrorReply


def error_form(error: ApiError, path: str) -> msgspec.Struct:
    """An error as the clients of a path expect it."""
    form = error_type(path)
    if form is OllamaErrorReply:
        return OllamaErrorReply(error.message)
    if form is MessagesErrorReply:
        message = error.message
        if error.code == "context_length_exceeded":  # agents look for these words to shorten their conversation
            message = f"prompt is too long: {message}"
        kind = _MESSAGES_TYPES.get(error.status, "invalid_request_error")
        return MessagesErrorReply(MessagesErrorBody(kind, message))
    return ErrorReply(ErrorBody(error.message, error.type, error.param, error.code))
