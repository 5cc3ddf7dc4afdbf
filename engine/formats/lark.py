"""Builds grammars of answers in llguidance's language.

Marks that are control tokens of the vocabulary become those tokens, since text never spells them; other marks are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..grammar import json_rule

MAX_CALLS = 16


class LarkText:
    """A grammar under construction; `special` has the ids of control tokens by their texts.

    All names that it makes begin with `own`, so that it can stand beside another grammar.
    """

    def __init__(self, special: Mapping[str, int], own: str = "") -> None:
        self._special = special
        self._own = own
        names = sorted(special, key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, names))) if names else None
        self._rules: dict[str, str] = {}  # by definition
        self._terminals: dict[str, str] = {}
        self._lazy: dict[str, str] = {}

    def text(self, start: str) -> str:
        """The whole grammar."""
        rules = [f"start: {start}", *(f"{name}: {text}" for text, name in self._rules.items())]
        rules += [f"{name}[lazy]: {text}" for text, name in self._lazy.items()]
        return "\n".join([*rules, *(f"{name}: {text}" for text, name in self._terminals.items()), ""])

    def literal(self, text: str) -> str:
        """Exactly this text."""
        parts: list[str] = []
        at = 0
        for found in self._cut.finditer(text) if self._cut is not None else ():
            if found.start() > at:
                parts.append(json.dumps(text[at : found.start()], ensure_ascii=False))
            parts.append(f"<[{self._special[found.group()]}]>")
            at = found.end()
        if at < len(text):
            parts.append(json.dumps(text[at:], ensure_ascii=False))
        return " ".join(parts) or '""'

    def schema(self, schema: Mapping[str, Any]) -> str:
        """JSON that a schema allows, which is a tool's: words in it that cannot be enforced are passed over."""
        return self.rule(json_rule(json.dumps(schema, ensure_ascii=False), is_lenient=True))

    def rule(self, definition: str) -> str:
        """A rule with this definition."""
        return self._rules.setdefault(definition, f"{self._own}r{len(self._rules)}")

    def define(self, name: str, definition: str) -> None:
        """A rule with a name of its own, which may use itself."""
        self._rules.setdefault(definition, name)

    def terminal(self, regex: str) -> str:
        """A regular expression; `/` in it is escaped here."""
        name = f"{self._own.upper()}T{len(self._terminals)}"
        return self._terminals.setdefault(f"/{regex.replace('/', '[/]')}/", name)

    def until(self, end: str) -> str:
        """Any text up to the first place where `end` stands, and `end`."""
        special = self._cut.match(end) if self._cut is not None else None
        if special is not None:
            return f"{self.terminal('(?s:.*)')} {self.literal(end)}"
        within = self._cut.search(end) if self._cut is not None else None
        head = end if within is None else end[: within.start()]
        name = self._lazy.setdefault(f"/(?s:.*){quoted(head)}/", f"{self._own}lazy{len(self._lazy)}")
        return name if within is None else f"{name} {self.literal(end[within.start() :])}"

    def several(self, item: str, between: str, is_parallel: bool) -> str:
        """One item or, with is_parallel, up to MAX_CALLS: a small model would repeat itself for ever."""
        if not is_parallel:
            return item
        behind = f"{self.literal(between)} {item}" if between else item
        return f"{item} ({behind}){{0,{MAX_CALLS - 1}}}"

    def choice(self, options: Iterable[str]) -> str:
        """One of several."""
        found = list(dict.fromkeys(options))
        return found[0] if len(found) == 1 else self.rule(" | ".join(found))


def quoted(text: str) -> str:
    """A text as part of a regular expression."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)
