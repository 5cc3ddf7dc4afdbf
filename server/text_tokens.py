"""Requests and answers of /tokenize, /detokenize and /apply-template, in llama-server's form."""

from __future__ import annotations

from typing import Any

import msgspec


class TokenizeRequest(msgspec.Struct):
    """A text; with `with_pieces` each token comes with what it stands for."""

    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class TokenPiece(msgspec.Struct):
    """A token and its text; its bytes where they are no whole character."""

    id: int
    piece: str | list[int]


class Tokens(msgspec.Struct):
    """Token ids, or tokens with their pieces."""

    tokens: list[int | TokenPiece]


class DetokenizeRequest(msgspec.Struct):
    """Token ids."""

    tokens: list[int]


class Content(msgspec.Struct):
    """A text."""

    content: str


class TemplateRequest(msgspec.Struct):
    """A conversation."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class Prompt(msgspec.Struct):
    """The rendered conversation and the number of its tokens."""

    prompt: str
    n_tokens: int


def piece_of(id: int, data: bytes) -> TokenPiece:
    """A token with its text."""
    try:
        return TokenPiece(id, data.decode())
    except UnicodeDecodeError:
        return TokenPiece(id, list(data))
