"""The answers of /v1/models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec


class ModelMeta(msgspec.Struct):
    """Numbers of the model, by llama-server's names."""

    n_ctx: int
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_params: int
    size: int
    arch: str


class ServedModel(msgspec.Struct, kw_only=True):
    """A name under which the model is served. `context_length` is the limit of one request.

    `type`, `display_name` and `created_at` are Anthropic's.
    """

    id: str
    object: str = "model"
    created: int
    owned_by: str = "pyggml"
    context_length: int
    max_model_len: int
    capabilities: list[str]
    meta: ModelMeta
    type: str = "model"
    display_name: str
    created_at: str


class ModelList(msgspec.Struct):
    """All served names; `has_more` and both ids are Anthropic's, who has pages."""

    data: list[ServedModel]
    first_id: str
    last_id: str
    has_more: bool = False
    object: str = "list"


def served_models(names: Sequence[str], facts: Mapping[str, Any], created: int) -> ModelList:
    """The model under each of its names."""
    meta = ModelMeta(
        facts["n_ctx"], facts["n_ctx_train"], facts["n_vocab"], facts["n_embd"], facts["n_params"],
        facts["file_bytes"], facts["arch"],
    )  # fmt: skip
    return ModelList(
        [
            ServedModel(
                id=name, created=created, context_length=meta.n_ctx, max_model_len=meta.n_ctx,
                capabilities=list(facts["capabilities"]), meta=meta, display_name=facts["name"],
                created_at=datetime.fromtimestamp(created, timezone.utc).isoformat(),
            )
            for name in names
        ],
        names[0],
        names[-1],
    )  # fmt: skip
