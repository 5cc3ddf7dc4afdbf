"""OpenAI-compatible HTTP over one engine that runs in a process of its own."""

from __future__ import annotations

from .errors import StartError
from .options import ServerOptions
from .serve import serve

__all__ = ["ServerOptions", "StartError", "serve"]
