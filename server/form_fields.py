"""What an answer's text must look like, as clients ask for it, in the words of SamplingParams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .errors import BadRequest


class FormFields(Protocol):
    """The fields of a request that ask for a form: OpenAI's, then llama-server's."""

    response_format: dict[str, Any] | None
    json_schema: dict[str, Any] | None
    grammar: str | None


def form_of(asked: FormFields) -> dict[str, Any]:
    """The fields of SamplingParams. Raises BadRequest."""
    form = format_of(asked.response_format, "response_format")
    given = ["response_format"] if form else []
    for name in ("json_schema", "grammar"):
        value = getattr(asked, name)
        if value is not None and value != "":
            form[name] = value
            given.append(name)
    if len(given) > 1:
        raise BadRequest(f"{' and '.join(given)} are given; an answer can follow one of them only", param=given[-1])
    return form


def format_of(format: Mapping[str, Any] | None, param: str) -> dict[str, Any]:
    """A format of chat (schema in `json_schema`) or of responses (schema beside the type)."""
    if format is None:
        return {}
    kind = format.get("type")
    if kind == "text":
        return {}
    if kind in ("json_object", "json_schema"):
        inner = format.get("json_schema") if isinstance(format.get("json_schema"), Mapping) else format
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        if isinstance(schema, (Mapping, bool)):
            return {"json_schema": schema}
        if kind == "json_object":
            return {"json_object": True}
        raise BadRequest(f"{param} is of type json_schema and has no schema", param=f"{param}.json_schema.schema")
    if kind in ("grammar", "regex"):
        text = format.get(kind) or format.get("grammar") or format.get("pattern")
        if isinstance(text, str):
            return {kind: text}
        raise BadRequest(f"{param} is of type {kind} and has no {kind}", param=f"{param}.{kind}")
    raise BadRequest(
        f"{param}.type is {kind!r}; text, json_object, json_schema, grammar and regex are known", param=f"{param}.type"
    )
