"""OpenAI-compatible HTTP over an engine, or several replicas of it, each in a process of its own."""

from __future__ import annotations

from .errors import StartError
from .options import ReplicaOptions, ServerOptions
from .serve import serve

__all__ = ["ReplicaOptions", "ServerOptions", "StartError", "serve"]
