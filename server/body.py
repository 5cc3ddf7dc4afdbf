"""Bodies of requests: read within a time and a size, decoded into their type."""

from __future__ import annotations

import asyncio
import re
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from .errors import BadRequest, TooLarge

T = TypeVar("T")
_PATH = re.compile(r" - at `\$\.?(.*)`$")
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


async def read_body(request: web.Request, timeout_s: float, max_bytes: int) -> bytes:
    """The whole body. Raises TooLarge, or BadRequest where it does not come in time."""
    try:
        return await asyncio.wait_for(request.read(), timeout_s)
    except web.HTTPRequestEntityTooLarge:
        raise TooLarge(f"the body is larger than {max_bytes} bytes, this server's limit") from None
    except asyncio.TimeoutError:
        raise BadRequest(f"the body did not come within {timeout_s:g} s", code="timeout") from None


def decoded(data: bytes, type_: type[T]) -> T:
    """The body as its type. Raises BadRequest naming the field."""
    decoder = _decoders.setdefault(type_, msgspec.json.Decoder(type_))
    try:
        result: T = decoder.decode(data)
        return result
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        raise BadRequest(_PATH.sub("", text) + _where(path), param=path[1] if path else None) from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None


def _where(path: re.Match[str] | None) -> str:
    return f" in {path[1]}" if path and path[1] else ""
