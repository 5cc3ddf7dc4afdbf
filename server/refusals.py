"""Fields that would change an answer and that this server does not have: refused by name, unless they say nothing.

A refused field stands in the request's type with type `Any`, so that the API description shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .errors import BadRequest


def refuse(request: object, fields: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise BadRequest for the first field that has a value other than null and the ones listed as harmless."""
    for name, harmless in fields.items():
        value = getattr(request, name)
        if value is not None and value not in harmless:
            allowed = " or ".join(repr(value) for value in harmless)
            but = f"; leave it out, or give {allowed}" if harmless else "; leave it out"
            raise BadRequest(f"{name} is not supported by this server{but}", param=name, code="unsupported_parameter")
