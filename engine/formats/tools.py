"""The tools that a request offers, and the calls that an answer makes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import RequestError

ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. `parameters` is a JSON schema, of an object."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: ANY_ARGUMENTS)

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schema of each argument by name."""
        found = self.parameters.get("properties")
        return found if isinstance(found, Mapping) else {}

    @property
    def required(self) -> frozenset[str]:
        """The arguments that a call must have."""
        found = self.parameters.get("required")
        return frozenset(found) if isinstance(found, (list, tuple)) else frozenset()

    def schema_of(self, key: str) -> Mapping[str, Any]:
        """The schema of one argument, complete in itself."""
        schema = self.properties.get(key)
        if not isinstance(schema, Mapping):
            return {}
        shared = {name: self.parameters[name] for name in ("$defs", "definitions") if name in self.parameters}
        return {**shared, **schema}

    def is_text(self, key: str) -> bool | None:
        """Whether an argument is text; None where the schema leaves it open."""
        schema = self.properties.get(key)
        if not isinstance(schema, Mapping):
            return None
        kinds = schema.get("type")
        if kinds is None and isinstance(schema.get("enum"), list):
            return all(isinstance(value, str) for value in schema["enum"])
        if kinds is None:
            return None
        named = {kinds} if isinstance(kinds, str) else set(kinds)
        return None if "string" in named and len(named) > 1 else "string" in named


def tools_of(value: Sequence[Mapping[str, Any]] | None) -> tuple[Tool, ...]:
    """Tools in OpenAI's form, or bare functions. Raises: RequestError that names the tool."""
    tools: list[Tool] = []
    for k, item in enumerate(value or ()):
        function = item.get("function", item) if isinstance(item, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
            raise RequestError(f"tools[{k}] has no function with a name")
        parameters = function.get("parameters")
        if parameters is None:
            parameters = ANY_ARGUMENTS
        if not isinstance(parameters, Mapping):
            raise RequestError(f"tools[{k}].function.parameters is no object; a JSON schema is needed")
        if any(tool.name == name for tool in tools):
            raise RequestError(f"tools[{k}]: there is a tool {name!r} already")
        tools.append(Tool(name, parameters))
    return tuple(tools)


@dataclass(frozen=True)
class ToolCall:
    """A call that an answer makes. `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str

    def parsed(self) -> Any:
        """The arguments as Python values. Raises: ValueError for what is no JSON."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a call: the first of each has `id` and `name`, those after it only more of `arguments`."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


def joined_calls(pieces: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls that pieces of them add up to."""
    heads: dict[int, ToolCallDelta] = {}
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        heads.setdefault(piece.index, piece)
        arguments.setdefault(piece.index, []).append(piece.arguments)
    return tuple(ToolCall(head.id or "", head.name or "", "".join(arguments[k])) for k, head in heads.items())
