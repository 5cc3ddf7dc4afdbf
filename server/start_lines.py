"""What a server says when it is ready: the model, where it lies, what it takes, where it listens."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .options import ServerOptions


def address(bound: socket.socket, is_tls: bool) -> str:
    """The URL of a listening socket."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{shown}:{port}"


def start_lines(
    names: Sequence[str], facts: Mapping[str, Any], options: ServerOptions, where: str, *, n_replicas: int = 1
) -> Iterator[str]:
    """The start-up block."""
    yield (
        f"model {', '.join(names)}: {facts['arch']}, {facts['n_layer']} layers, "
        f"{facts['n_params'] / 1e6:.0f} M parameters, {facts['file_bytes'] / 2**20:.0f} MiB ({facts['path']})"
    )
    if n_replicas > 1:
        yield f"{n_replicas} replicas, each with the whole model and a cache of its own"
    yield from facts["notes"]
    yield from facts["plan_lines"]
    cache = sum(rank["cache_bytes"] for rank in facts["plan"])
    yield (
        f"context {facts['n_ctx']} tokens a request, {facts['n_slots']} slots ({cache / 2**20:.0f} MiB of cache), "
        f"at most {options.max_queued} requests wait"
    )
    if not facts["has_chat_template"]:
        yield "no chat template (a base model): chat needs --chat-template FILE"
    yield f"listening on {where}"
