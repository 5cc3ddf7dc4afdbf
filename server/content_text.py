"""The text of a content, which is a string or a list of parts, and other strings of objects without a type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import BadRequest


def string_field(item: Mapping[str, Any], name: str, where: str) -> str:
    """A field that must be a string. Raises BadRequest."""
    value = item.get(name)
    if not isinstance(value, str):
        raise BadRequest(f"{where}.{name} is missing; a string is needed", param=f"{where}.{name}")
    return value


def text_of(content: Any, where: str, kinds: Sequence[str]) -> str:
    """The text of a content: a string, or parts of these kinds. Raises BadRequest naming the part at fault."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRequest(f"{where} is no text and no list of parts", param=where)
    return "\n".join(part_text(part, f"{where}[{number}]", kinds) for number, part in enumerate(content))


def part_text(part: Any, where: str, kinds: Sequence[str]) -> str:
    """The text of one part. Raises BadRequest."""
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
    if (kind not in kinds and kind != "refusal") or not isinstance(text, str):
        raise BadRequest(
            f"{where} is of type {kind!r}; this server takes text: {', '.join(kinds)}", param=f"{where}.type"
        )
    return text
