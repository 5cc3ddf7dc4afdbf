"""Reads llama.cpp's grammar language, GBNF, into a tree.

Rules `name ::= …`; texts in quotes, character classes, `.`, groups, `|`, repetitions `* + ? {m,n}`, tokens `<name>`,
`<[id]>` and their negations with `!`, comments from `#` to the end of the line. Translates nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

MAX_DEPTH = 60
MAX_REPEAT = 2000  # llama.cpp's own limit on a repetition's bounds
LAST_CHAR = 0x10FFFF

Range = tuple[int, int]


class GBNFError(ValueError):
    """A grammar that cannot be read or translated, with the line and what was expected."""


@dataclass(frozen=True)
class Chars:
    """One character out of ranges of code points, sorted and apart."""

    ranges: tuple[Range, ...]


@dataclass(frozen=True)
class Token:
    """One token of the vocabulary: `<name>`, `<[12]>`, or any but `<[12]>` as `<[^12]>`."""

    text: str


@dataclass(frozen=True)
class Rule:
    """What another rule stands for."""

    name: str


@dataclass(frozen=True)
class Sequence:
    """Items one after another; none at all is the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """An item `least` to `most` times; most None is any number."""

    item: Node
    least: int
    most: int | None


Node: TypeAlias = "Chars | Token | Rule | Sequence | Choice | Repeat"

_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TOKEN = re.compile(r"(!?)<(\[[0-9]+\]|[^<>\s\[][^<>\s]*)>")
_BOUNDS = re.compile(r"\{\s*([0-9]{1,9})\s*(,?)\s*([0-9]{0,9})\s*\}")
_ESCAPES = {"n": 10, "r": 13, "t": 9, "\\": 92, '"': 34, "[": 91, "]": 93}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}


def read_gbnf(source: str) -> dict[str, Node]:
    """The rules of a grammar by name, in order. Raises: GBNFError."""
    return _Reader(source).rules()


def merged(ranges: list[Range]) -> tuple[Range, ...]:
    """The same characters in ranges that are sorted and apart."""
    result: list[Range] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._source):
            name = self._match(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            self._take("::=")
            self._skip(_SPACE_AND_LINES)
            rules[name] = self._choice(is_nested=False)
            self._skip(_SPACE)
            if self._at < len(self._source) and self._source[self._at] not in "\r\n":
                raise self._error("the end of the line")
            self._skip(_SPACE_AND_LINES)
        for node in rules.values():
            for name in names_in(node):
                if name not in rules:
                    raise GBNFError(f"the rule {name!r} is used and nowhere defined")
        if "root" not in rules:
            raise GBNFError("there is no rule 'root', with which a grammar begins")
        for name in rules.keys() - _ending(rules):
            raise GBNFError(f"the rule {name!r} never comes to an end: it always needs itself")
        return rules

    def _choice(self, is_nested: bool) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise GBNFError(f"groups are nested more than {MAX_DEPTH} deep")
        options = [self._sequence(is_nested)]
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            options.append(self._sequence(is_nested))
        self._depth -= 1
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, is_nested: bool) -> Node:
        items: list[Node] = []
        space = _SPACE_AND_LINES if is_nested else _SPACE
        while True:
            self._skip(space)
            char = self._peek()
            if char == '"':
                self._at += 1
                item: Node = Sequence(tuple(Chars(((code, code),)) for code in self._codes('"')))
            elif char == "[":
                item = self._class()
            elif char == "(":
                self._at += 1
                self._skip(_SPACE_AND_LINES)
                item = self._choice(is_nested=True)
                self._take(")")
            elif char == ".":
                self._at += 1
                item = Chars(((0, LAST_CHAR),))
            elif char == "<" or char == "!":
                negation, text = self._match(_TOKEN, "a token, <name> or <[id]>").groups()
                item = Token(f"<[^{text[1:-1]}]>" if negation and text[0] == "[" else f"<{text}>")
                if negation and text[0] != "[":
                    raise GBNFError(f"!<{text}> cannot be translated; give the token by its id, as in !<[12]>")
            elif char and _NAME.match(char):
                item = Rule(self._match(_NAME, "a name")[0])
            else:
                return items[0] if len(items) == 1 else Sequence(tuple(items))
            items.append(self._repeated(item, space))

    def _repeated(self, item: Node, space: re.Pattern[str]) -> Node:
        self._skip(space)
        char = self._peek()
        bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(char)
        if bounds is not None:
            self._at += 1
        elif char == "{":
            least, comma, most = self._match(_BOUNDS, "{m}, {m,} or {m,n}").groups()
            bounds = int(least), int(most) if most else None if comma else int(least)
            if max(bounds[0], bounds[1] or 0) > MAX_REPEAT:
                raise GBNFError(f"a repetition of {max(bounds[0], bounds[1] or 0)}; at most {MAX_REPEAT} is allowed")
            if bounds[1] is not None and bounds[1] < bounds[0]:
                raise self._error("a repetition whose second bound is not below its first")
        return item if bounds is None else Repeat(item, *bounds)

    def _class(self) -> Node:
        self._at += 1
        is_negated = self._peek() == "^"
        self._at += is_negated
        codes = self._codes("]", keeps_dash=True)
        ranges: list[Range] = []
        k = 0
        while k < len(codes):
            if k + 2 < len(codes) and codes[k + 1] == -1:
                low, high = codes[k], codes[k + 2]
                if high < low:
                    raise self._error(f"a range that rises, not {chr(low)!r} to {chr(high)!r}")
                ranges.append((max(low, 45 if low == -1 else low), high))
                k += 3
            else:
                code = 45 if codes[k] == -1 else codes[k]
                ranges.append((code, code))
                k += 1
        found = merged(ranges)
        return Chars(inverse(found) if is_negated else found)

    def _codes(self, end: str, keeps_dash: bool = False) -> list[int]:
        """Code points up to `end`; with keeps_dash a bare `-` is -1."""
        codes: list[int] = []
        while (char := self._peek()) != end:
            if not char:
                raise self._error(f"{end} to close what was opened")
            self._at += 1
            if char == "\\":
                codes.append(self._escape())
            else:
                codes.append(-1 if keeps_dash and char == "-" else ord(char))
        self._at += 1
        return codes

    def _escape(self) -> int:
        char = self._peek()
        self._at += 1
        if char in _HEX_LENGTHS:
            digits = self._source[self._at : self._at + _HEX_LENGTHS[char]]
            self._at += len(digits)
            if re.fullmatch("[0-9A-Fa-f]+", digits) and len(digits) == _HEX_LENGTHS[char]:
                code = int(digits, 16)
                if code <= LAST_CHAR and not 0xD800 <= code < 0xE000:
                    return code
        elif char and char in _ESCAPES:
            return _ESCAPES[char]
        raise self._error(r"an escape: \n \r \t \\ \" \[ \] \xHH \uHHHH \UHHHHHHHH")

    def _peek(self) -> str:
        return self._source[self._at : self._at + 1]

    def _skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self._source, self._at)
        assert found is not None, "matches the empty text, too"
        self._at = found.end()

    def _match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._source, self._at)
        if found is None:
            raise self._error(what)
        self._at = found.end()
        return found

    def _take(self, text: str) -> None:
        if not self._source.startswith(text, self._at):
            raise self._error(text)
        self._at += len(text)

    def _error(self, expected: str) -> GBNFError:
        line = self._source.count("\n", 0, self._at) + 1
        rest = self._source[self._at : self._at + 20].partition("\n")[0]
        return GBNFError(f"line {line}: expected {expected}, found {rest!r}")


def _ending(rules: Mapping[str, Node]) -> set[str]:
    """The rules that some text satisfies."""
    found: set[str] = set()

    def ends(node: Node) -> bool:
        if isinstance(node, Rule):
            return node.name in found
        if isinstance(node, Repeat):
            return node.least == 0 or ends(node.item)
        if isinstance(node, Choice):
            return any(map(ends, node.options))
        return not isinstance(node, Sequence) or all(map(ends, node.items))

    while more := {name for name, node in rules.items() if name not in found and ends(node)}:
        found |= more
    return found


def names_in(node: Node) -> set[str]:
    """The rules that a node uses."""
    if isinstance(node, Rule):
        return {node.name}
    if isinstance(node, Repeat):
        return names_in(node.item)
    if isinstance(node, (Sequence, Choice)):
        parts = node.items if isinstance(node, Sequence) else node.options
        return set().union(*map(names_in, parts))
    return set()


def inverse(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """All other characters."""
    result: list[Range] = []
    start = 0
    for low, high in ranges:
        if low > start:
            result.append((start, low - 1))
        start = high + 1
    if start <= LAST_CHAR:
        result.append((start, LAST_CHAR))
    return tuple(result)
