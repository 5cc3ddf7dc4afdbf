"""Variables in option files: `${NAME}` and `${NAME:-fallback}` within texts, `$${` for a plain `${`.

A name is looked up in the files' own `variables`, which may use one another, then in the environment; the fallback is
for a name that is in neither, or empty.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError

_REFERENCE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<fallback>[^{}]*))?\}|\$\{[^}]*\}?")


class Filled(str):
    """A text in which variables were replaced, and which may therefore stand for a value of another kind."""


class Variables:
    """The variables that a file may use."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._texts: dict[str, str] = {}

    def add(self, table: Any, source: str) -> None:
        """Take a file's `variables`; those of later files replace those of earlier ones.

        Raises ConfigError for what is no object of names with texts or numbers.
        """
        if not isinstance(table, dict):
            raise ConfigError(f'{source}: an object is needed, as in {{"folder": "/models"}}')
        for name, value in table.items():
            if not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ConfigError(f"{source}: {name!r} is no name of a variable; letters, digits and _ are allowed")
            if isinstance(value, (dict, list)) or value is None:
                raise ConfigError(f"{source}: {name} needs a text, a number, true or false")
            self._texts[name] = str(value).lower() if isinstance(value, bool) else str(value)

    def fill(self, value: Any, source: str) -> Any:
        """A value of a file with variables in its texts replaced, also within lists and objects.

        Raises ConfigError for a name that is not set, a chain of variables that comes round, and `${` that is neither.
        """
        if isinstance(value, str):
            return Filled(self._filled(value, source, ())) if "${" in value else value
        if isinstance(value, list):
            return [self.fill(item, source) for item in value]
        if isinstance(value, dict):
            return {key: self.fill(item, source) for key, item in value.items()}
        return value

    def _filled(self, text: str, source: str, within: tuple[str, ...]) -> str:
        return _REFERENCE.sub(lambda match: self._replacement(match, source, within), text)

    def _replacement(self, match: re.Match[str], source: str, within: tuple[str, ...]) -> str:
        name, fallback = match["name"], match["fallback"]
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ConfigError(
                f"{source}: {match[0]!r} is no variable; the forms are ${{NAME}} and ${{NAME:-fallback}}, and $${{ is "
                "a plain ${"
            )
        if name in within:
            raise ConfigError(f"{source}: variables come round in a circle: {' -> '.join([*within, name])}")
        found = self._texts.get(name)
        found = self._environ.get(name) if found is None else self._filled(found, source, (*within, name))
        if fallback is not None:
            return found or fallback
        if found is None:
            raise ConfigError(
                f'{source}: ${{{name}}} is neither in "variables" nor in the environment; a fallback is written '
                f"${{{name}:-…}}"
            )
        return found
