"""Forms that all endpoints share: JSON responses, and the engine's reasons in OpenAI's words."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from .error_forms import error_form
from .errors import ApiError
from .messages import Piece

_encoder = msgspec.json.Encoder()
REASONS = {
    "stop": "stop", "tool_calls": "tool_calls", "length": "length", "time": "length", "abort": "stop",
    "repetition": "repetition",
}  # fmt: skip


def json_reply(value: Any, status: int = 200) -> web.Response:
    """A value as a JSON response."""
    return web.Response(body=_encoder.encode(value), status=status, content_type="application/json")


def error_reply(error: ApiError, path: str) -> web.Response:
    """An error in the form of its path."""
    response = json_reply(error_form(error, path), error.status)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def finish_reason(piece: Piece) -> str:
    """Why an answer ended."""
    return REASONS[piece.finish_reason or "stop"]
