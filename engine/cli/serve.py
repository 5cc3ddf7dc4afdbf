"""`pyggml serve`: settles the options, plans replicas, and hands them to the server, which is a package of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..errors import ConfigError
from ..load_options import LoadOptions
from ..pace import check_gap
from ..replica_options import replica_options
from .loading import is_elsewhere, model_path, placing, read_text, warn_of_unused_gpus
from .replicas import as_llm_options, planned_replicas, processors
from .sampling import chosen_sampling
from .settings import Settings
from .terminal import one_line, say

WITHOUT_SERVER = "the server's libraries are missing ({}); install them with: pip install 'pyggml[server]'"


def serve(settings: Settings) -> int:
    """Serve until a signal comes."""
    try:
        from pyggml.server import ReplicaOptions, ServerOptions, StartError
        from pyggml.server import serve as serve_model
    except ModuleNotFoundError as error:
        raise ConfigError(WITHOUT_SERVER.format(error.name)) from error
    sampling = chosen_sampling(settings)
    max_tokens = sampling.pop("max_tokens", None)
    llm_options = placing(settings) | {
        "ctx": settings["ctx"],
        "parallel": settings["parallel"],
        "transport": settings["transport"],
        "cuda_graphs": settings["cuda-graphs"],
        "prefix_cache": settings["prefix-cache"],
        "max_gap_ms": settings["max-gap"],
        "prefix_cache_dir": settings["prefix-cache-dir"],
        "prefix_cache_bytes": settings["prefix-cache-size"] * 2**20,
        "chat_template": read_text(settings, "chat-template") if settings.is_given("chat-template") else None,
    }
    check_gap(settings["max-gap"])
    warn_of_unused_gpus(settings)
    options = ServerOptions(sampling=sampling, max_tokens=max_tokens, **_server_options(settings))
    dealt = _dealt(settings, llm_options)
    model = str(model_path(settings)) if is_elsewhere(settings) else settings["model"]
    replicas = [ReplicaOptions(own, cpus) for own, cpus in _replicas(settings, model, llm_options, dealt)]
    try:
        serve_model(model, replicas, options)
    except StartError as error:
        say(f"pyggml serve: {one_line(str(error))}")
        return error.status
    return 0


def _dealt(settings: Settings, llm_options: dict[str, Any]) -> Sequence[LoadOptions]:
    """The options of each of several replicas, none of a single one.

    Raises ConfigError for --pin without a processor for each rank.
    """
    if settings["dp"] == 1:
        return ()
    options = LoadOptions(**{field.name: llm_options[field.name] for field in fields(LoadOptions)})
    dealt = replica_options(options, settings["dp"])
    if settings["pin"]:
        processors(dealt)
    return dealt


def _replicas(
    settings: Settings, model: str, llm_options: dict[str, Any], dealt: Sequence[LoadOptions]
) -> Sequence[tuple[dict[str, Any], tuple[int, ...]]]:
    """The options of each replica's LLM and the processors that it stays on."""
    if not dealt:
        return [(llm_options, ())]
    planned = planned_replicas(model, dealt)
    cpus = processors(planned) if settings["pin"] else [()] * len(planned)
    return [(llm_options | as_llm_options(own), at) for own, at in zip(planned, cpus)]


def _server_options(settings: Settings) -> dict[str, Any]:
    """What ServerOptions has by the names of the command line."""
    same = (
        "host", "port", "any-model", "api-key-file", "tls-cert", "tls-key", "max-queued", "on-fault", "redis-url",
        "log-format", "log-prompts", "webui",
    )  # fmt: skip
    seconds = ("idle-timeout", "read-timeout", "write-timeout", "grace")
    for name in seconds:
        if not settings[name] > 0:
            raise ConfigError(f"{settings.source(name)} is {settings[name]:g}; a number of seconds above 0 is needed")
    return {
        **{name.replace("-", "_"): settings[name] for name in same},
        **{f"{name.replace('-', '_')}_s": settings[name] for name in seconds},
        "aliases": _words(settings, "alias"),
        "cors": _words(settings, "cors"),
        "api_keys": tuple(settings["api-key"]),
        "max_body_bytes": settings["max-body"] * 2**20,
    }


def _words(settings: Settings, name: str) -> tuple[str, ...]:
    """The parts of a value with commas."""
    return tuple(word.strip() for word in (settings[name] or "").split(",") if word.strip())
