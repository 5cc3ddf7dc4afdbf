"""`pyggml list` and `pyggml rm`: the fetched models on this disk, and what a repository of the hub offers."""

from __future__ import annotations

import json
from typing import Any

from ..downloads.model_address import HubAddress
from ..downloads.store import Offered, Stored, offered_models, remove, stored_models
from ..errors import ConfigError
from ..room import Room
from .loading import named_address, room_here
from .settings import Settings
from .table import render
from .terminal import one_line
from .units import shown_bytes


def list_models(settings: Settings) -> int:
    """Print what lies here, or what the repository that is named has."""
    if settings.is_given("model"):
        return _list_offered(settings)
    found = stored_models()
    if settings["json"]:
        print(json.dumps([_stored_document(each) for each in found], ensure_ascii=False))
    elif not found:
        print("no model was fetched yet; pyggml pull hf:owner/repo fetches one")
    else:
        rows = [(one_line(each.name), shown_bytes(each.n_bytes), one_line(_state(each))) for each in found]
        print(render(rows, header=("model", "size", "file"), right=(1,)))
    return 0


def _state(each: Stored) -> str:
    return "not whole; pull it again" if each.path is None else str(each.path)


def _stored_document(each: Stored) -> dict[str, Any]:
    path = None if each.path is None else str(each.path)
    return {"name": each.name, "n_bytes": each.n_bytes, "n_files": each.n_files, "path": path}


def _list_offered(settings: Settings) -> int:
    address = named_address(settings)
    if not isinstance(address, HubAddress) or address.choice:
        raise ConfigError(f"{settings.source('model')}: a repository is needed, as in hf:owner/repo")
    limit, found = room_here(settings), offered_models(address, offline=settings["offline"])
    if settings["json"]:
        print(json.dumps([_offered_document(each, limit) for each in found], ensure_ascii=False))
    else:
        rows = [
            (one_line(each.name), shown_bytes(each.n_bytes), str(each.n_files), _yes(limit.is_enough(each.n_bytes)),
             _yes(each.is_here))
            for each in found
        ]  # fmt: skip
        print(render(rows, header=("model", "size", "files", "fits", "here"), right=(1, 2)))
        print(f"fits: by its size, into {limit.text}, with room for a context")
    return 0


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _offered_document(each: Offered, limit: Room) -> dict[str, Any]:
    return {
        "name": each.name,
        "n_bytes": each.n_bytes,
        "n_files": each.n_files,
        "fits": limit.is_enough(each.n_bytes),
        "is_here": each.is_here,
    }


def remove_model(settings: Settings) -> int:
    """Remove what was named."""
    address = named_address(settings)
    n_bytes = remove(address)
    if settings["json"]:
        print(json.dumps({"name": str(address), "n_bytes": n_bytes}, ensure_ascii=False))
    else:
        print(f"{address}: removed, {shown_bytes(n_bytes)} are free again")
    return 0
