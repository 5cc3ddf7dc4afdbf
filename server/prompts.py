"""Prompts as clients send them: a text, token ids, or a list of either."""

from __future__ import annotations

from typing import Any

from .errors import BadRequest

MAX_PROMPTS = 2048


def prompts_of(given: str | list[Any], param: str = "prompt") -> list[str | list[int]]:
    """One form for all: a list of texts and lists of ids. Raises BadRequest."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise BadRequest(f"{param} is an empty list; give a text or token ids", param=param)
    if all(isinstance(item, int) for item in given):
        return [given]
    if any(isinstance(item, int) for item in given):
        raise BadRequest(f"{param} mixes token ids with texts; put the ids into a list of their own", param=param)
    if len(given) > MAX_PROMPTS:
        raise BadRequest(f"{param} has {len(given)} prompts; at most {MAX_PROMPTS} are taken", param=param)
    return given
