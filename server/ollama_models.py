"""The answers of /api/tags, /api/ps, /api/show and /api/version, and the requests and answers of /api/embed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

# Whose API this is, by whose number clients tell what they may ask for.
OLLAMA_VERSION = "0.12.11"
# Not embedding, although /api/embed works: clients take a model that has it for one that cannot answer.
CAPABILITIES = {"completion": "completion", "tools": "tools", "reasoning": "thinking"}
NEVER = "9999-12-31T23:59:59Z"


class Details(msgspec.Struct):
    """What kind of model it is. The quantization is the type of most of its bytes."""

    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    parent_model: str = ""


class Tag(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A name under which the model is served. The digest tells models apart; it is not that of the file."""

    name: str
    model: str
    size: int
    digest: str
    details: Details
    modified_at: str | None = None
    expires_at: str | None = None
    size_vram: int | None = None
    context_length: int | None = None


class TagList(msgspec.Struct):
    """All served names."""

    models: list[Tag]


class ShowRequest(msgspec.Struct):
    """A name."""

    model: str | None = None
    name: str | None = None


class Shown(msgspec.Struct, kw_only=True):
    """Everything about the model. `model_info` are the file's metadata without lists and long texts."""

    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    template: str
    parameters: str
    modelfile: str = ""
    license: str = ""


class Version(msgspec.Struct):
    """The version of Ollama whose API this is."""

    version: str = OLLAMA_VERSION


def details_of(facts: Mapping[str, Any]) -> Details:
    """What kind of model it is."""
    return Details(
        "gguf", facts["arch"], [facts["arch"]], _size(facts["n_params"]), facts["quantization"]
    )


def tag_of(name: str, facts: Mapping[str, Any]) -> Tag:
    """The model under a name; Ollama's names have a tag."""
    full = name if ":" in name else f"{name}:latest"
    known = f"{facts['name']} {facts['arch']} {facts['n_params']} {facts['file_bytes']}"
    return Tag(
        name=full, model=full, size=facts["file_bytes"], digest=hashlib.sha256(known.encode()).hexdigest(),
        details=details_of(facts),
    )  # fmt: skip


def running_of(name: str, facts: Mapping[str, Any]) -> Tag:
    """The same as /api/ps has it: what lies on cards, and until when."""
    tag = tag_of(name, facts)
    ranks = [rank for rank in facts["plan"] if not rank["device"].startswith("cpu")]
    tag.size_vram = sum(rank["weights_bytes"] + rank["cache_bytes"] + rank["compute_bytes"] for rank in ranks)
    tag.expires_at, tag.context_length = NEVER, facts["n_ctx"]
    return tag


def shown_of(facts: Mapping[str, Any], sampling: Mapping[str, Any]) -> Shown:
    """Everything about the model, with what the server was started with as parameters."""
    parameters = {"num_ctx": facts["n_ctx"], **sampling}
    return Shown(
        details=details_of(facts),
        model_info=facts["metadata"] | {"general.parameter_count": facts["n_params"]},
        capabilities=[CAPABILITIES[name] for name in facts["capabilities"] if name in CAPABILITIES],
        modified_at=told_time(facts["modified_s"]),
        template=facts["template"],
        parameters="\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
    )


def told_time(unix_s: float) -> str:
    """A time as Ollama writes it."""
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat().replace("+00:00", "Z")


def _size(n_params: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n_params >= unit:
            return f"{n_params / unit:.1f}{name}"
    return str(n_params)
