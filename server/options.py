"""What a server is started with, beside the options of its model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ReplicaOptions:
    """One copy of the model: the options of its LLM, and the processors that its process stays on, if not any."""

    llm: Mapping[str, Any]
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class ServerOptions:
    """Where to listen, whom to serve, and the limits.

    `aliases` are the served names, of which the first is the model's; none stands for the file's name. `sampling` are
    the server's defaults, which a request overrides; `max_tokens` fills in and caps. `on_fault` is restart or exit.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    aliases: tuple[str, ...] = ()
    any_model: bool = False
    api_keys: tuple[str, ...] = ()
    api_key_file: str | None = None
    cors: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    max_body_bytes: int = 32 * 2**20
    max_queued: int = 256
    idle_timeout_s: float = 75.0
    read_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    grace_s: float = 30.0
    on_fault: str = "restart"
    redis_url: str | None = None
    log_format: str = "text"
    log_prompts: bool = False
    webui: bool = True
    max_tokens: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
