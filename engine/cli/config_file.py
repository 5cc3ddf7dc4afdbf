"""Option files: JSON with comments and trailing commas, read into a flat table of values.

Positions in error messages are those of the file as it stands. Knows nothing of the options.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from ..errors import ConfigError

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA = re.compile(rf"{_STRING}|[{{\[]\s*,|,(?=\s*[}}\]])", re.DOTALL)


def _blanked(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith(('"', "{", "[")) else re.sub(r"[^\n]", " ", found)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return table


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def read_config(path: str) -> dict[str, Any]:
    """The keys and values of an option file.

    Raises ConfigError naming the file, and the line where it is no JSON.
    """
    try:
        source = Path(path).expanduser().read_text("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--config {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config {path}: the file is not UTF-8 (byte {error.start})") from error
    plain = _TRAILING_COMMA.sub(_blanked, _COMMENT.sub(_blanked, source))
    try:
        table = json.loads(plain, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"--config {path}: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"--config {path}: brackets are nested too deep") from error
    except ValueError as error:
        raise ConfigError(f"--config {path}: {error}") from error
    if not isinstance(table, dict):
        raise ConfigError(f'--config {path}: an object is needed, as in {{"ctx": 8192}}')
    return table
