"""Translates a grammar tree of GBNF into llguidance's language.

GBNF knows characters only; llguidance cuts the text into lexemes first, each as long as it can be. So what is not
recursive becomes one regular expression, unless it could swallow what must follow it: then it is taken apart, down to
single characters if need be, which any cut fits. Such a translation is slower and means the same.
Where two alternatives begin alike, texts that only the shorter one's rest would allow may be lost; none is added.
"""

from __future__ import annotations

from collections.abc import Iterable

from .gbnf import (
    LAST_CHAR,
    Chars,
    Choice,
    Node,
    Range,
    Repeat,
    Rule,
    Sequence,
    Token,
    merged,
    names_in,
    read_gbnf,
)

Ranges = tuple[Range, ...]
_NONE: Ranges = ()


def gbnf_to_lark(source: str) -> str:
    """The same grammar for llguidance. Raises: GBNFError for what cannot be read or translated."""
    return _Translation(read_gbnf(source)).text()


class _Translation:
    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._names = {name: f"r{k}" for k, name in enumerate(rules)} | {"root": "start"}
        self._regular = self._find_regular()
        self._inner: dict[str, Ranges] = {}
        self._nullable: set[str] = set()
        self._first: dict[str, Ranges] = dict.fromkeys(rules, _NONE)
        self._extends: dict[str, Ranges] = dict.fromkeys(rules, _NONE)
        self._follow: dict[str, Ranges] = dict.fromkeys(rules, _NONE)
        self._settle()
        self._terminals: dict[str, str] = {}  # by the text of their definition
        self._spelled: dict[str, str] = {}  # by the rule that they stand for
        self._waiting: list[str] = []

    def text(self) -> str:
        """The whole grammar; rules that became part of a regular expression are left out."""
        lines: list[str] = []
        self._waiting = ["root"]
        for name in self._waiting:  # grows while rules are translated
            lines.append(f"{self._names[name]}: {self._lark(self._rules[name], self._follow[name])}")
        return "\n".join([*lines, *(f"{name}: {text}" for text, name in self._terminals.items()), ""])

    def _find_regular(self) -> set[str]:
        """Rules without recursion and without tokens."""
        regular: set[str] = set()
        while True:
            more = {
                name
                for name, node in self._rules.items()
                if name not in regular and names_in(node) <= regular and not _has_tokens(node)
            }
            if not more:
                return regular
            regular |= more

    def _settle(self) -> None:
        """Work out, for each rule, the characters it begins with, may go on with, and may be followed by."""
        while True:
            before = self._state()
            for name, node in self._rules.items():
                if self._is_nullable(node):
                    self._nullable.add(name)
                self._first[name] = self._first_of(node)
                self._extends[name] = self._extends_of(node)
                self._pass_follow(node, self._follow[name])
            if self._state() == before:
                return

    def _state(self) -> object:
        return len(self._nullable), dict(self._first), dict(self._extends), dict(self._follow)

    def _is_nullable(self, node: Node) -> bool:
        if isinstance(node, Rule):
            return node.name in self._nullable
        if isinstance(node, Sequence):
            return all(map(self._is_nullable, node.items))
        if isinstance(node, Choice):
            return any(map(self._is_nullable, node.options))
        return isinstance(node, Repeat) and (node.least == 0 or self._is_nullable(node.item))

    def _first_of(self, node: Node) -> Ranges:
        if isinstance(node, Chars):
            return node.ranges
        if isinstance(node, Rule):
            return self._first[node.name]
        if isinstance(node, Repeat):
            return self._first_of(node.item)
        if isinstance(node, Choice):
            return _union(map(self._first_of, node.options))
        if isinstance(node, Sequence):
            return self._first_of_items(node.items)
        return _NONE

    def _first_of_items(self, items: tuple[Node, ...]) -> Ranges:
        found: list[Ranges] = []
        for item in items:
            found.append(self._first_of(item))
            if not self._is_nullable(item):
                break
        return _union(found)

    def _extends_of(self, node: Node) -> Ranges:
        """Characters with which a text that the node matches may go on and still be matched, or begin to be."""
        if isinstance(node, Rule):
            return self._extends[node.name]
        if isinstance(node, Repeat):
            own = self._extends_of(node.item)
            return own if node.most == node.least == 1 else _union([own, self._first_of(node.item)])
        if isinstance(node, Choice):  # one option may be the beginning of another
            return _union([*map(self._extends_of, node.options), *map(self._inner_of, node.options)])
        if isinstance(node, Sequence):
            found: list[Ranges] = []
            for item in reversed(node.items):
                found.append(self._extends_of(item))
                if not self._is_nullable(item):
                    break
                found.append(self._first_of(item))
            return _union(found)
        return _NONE

    def _inner_of(self, node: Node) -> Ranges:
        """All characters that a node may hold behind its first."""
        if isinstance(node, Sequence):
            parts = [*map(self._inner_of, node.items), *map(self._first_of, node.items[1:])]
            return _union(parts)
        if isinstance(node, Rule):
            if node.name not in self._inner:
                is_regular = node.name in self._regular
                self._inner[node.name] = self._inner_of(self._rules[node.name]) if is_regular else ((0, LAST_CHAR),)
            return self._inner[node.name]
        if isinstance(node, Repeat):
            return _union([self._inner_of(node.item), self._first_of(node.item)])
        return _union(map(self._inner_of, node.options)) if isinstance(node, Choice) else _NONE

    def _pass_follow(self, node: Node, follow: Ranges) -> None:
        if isinstance(node, Rule):
            self._follow[node.name] = _union([self._follow[node.name], follow])
        elif isinstance(node, Choice):
            for option in node.options:
                self._pass_follow(option, follow)
        elif isinstance(node, Repeat):
            self._pass_follow(node.item, self._within(node, follow))
        elif isinstance(node, Sequence):
            for k, item in enumerate(node.items):
                self._pass_follow(item, self._behind(node.items[k + 1 :], follow))

    def _within(self, node: Repeat, follow: Ranges) -> Ranges:
        return _union([follow, self._first_of(node.item)])

    def _behind(self, items: tuple[Node, ...], follow: Ranges) -> Ranges:
        first = self._first_of_items(items)
        return _union([first, follow]) if all(map(self._is_nullable, items)) else first

    def _lark(self, node: Node, follow: Ranges) -> str:
        if self._is_regular(node) and not _overlap(self._extends_of(node), follow):
            return self._terminal(node)
        if isinstance(node, Rule):
            if node.name not in self._waiting:
                self._waiting.append(node.name)
            return self._names[node.name]
        if isinstance(node, Repeat):
            return f"({self._lark(node.item, self._within(node, follow))}){_times(node)}"
        if isinstance(node, Choice):
            return "(" + " | ".join(self._lark(option, follow) for option in node.options) + ")"
        if isinstance(node, Sequence):
            return " ".join(self._pieces(node.items, follow)) or '""'
        return node.text if isinstance(node, Token) else self._terminal(node)

    def _pieces(self, items: tuple[Node, ...], follow: Ranges) -> Iterable[str]:
        """Items of a sequence, as long runs of regular ones as do not swallow what follows the run."""
        start = 0
        while start < len(items):
            for end in range(len(items), start, -1):
                run = Sequence(items[start:end])
                behind = self._behind(items[end:], follow)
                if end == start + 1:
                    yield self._lark(items[start], behind)
                elif self._is_regular(run) and not _overlap(self._extends_of(run), behind):
                    yield self._terminal(run)
                else:
                    continue
                start = end
                break

    def _is_regular(self, node: Node) -> bool:
        return names_in(node) <= self._regular and not _has_tokens(node)

    def _terminal(self, node: Node) -> str:
        return self._named(f"/{self._regex(node)}/" if isinstance(node, Chars) else self._terminal_text(node))

    def _named(self, definition: str) -> str:
        return self._terminals.setdefault(definition, f"T{len(self._terminals)}")

    def _terminal_text(self, node: Node) -> str:
        """The definition of a terminal, which may use others: a rule is spelled once however often it is used."""
        if isinstance(node, Rule):
            if node.name not in self._spelled:
                self._spelled[node.name] = self._terminal(self._rules[node.name])
            return self._spelled[node.name]
        if isinstance(node, Chars):
            return f"/{self._regex(node)}/"
        if isinstance(node, Repeat):
            return f"({self._terminal_text(node.item)}){_times(node)}"
        if isinstance(node, Choice):
            return "(" + " | ".join(self._terminal_text(option) for option in node.options) + ")"
        assert isinstance(node, Sequence), "tokens are in no terminal"
        texts: list[str] = []
        plain = ""
        for item in node.items:
            if isinstance(item, Chars):
                plain += self._regex(item)
                continue
            texts += [f"/{plain}/"] if plain else []
            plain = ""
            texts.append(self._terminal_text(item))
        texts += [f"/{plain}/"] if plain else []
        return " ".join(texts) or '""'

    @staticmethod
    def _regex(chars: Chars) -> str:
        if len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
            return _code(chars.ranges[0][0])
        inner = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in chars.ranges)
        return f"[{inner}]" if inner else "[^\\x{0}-\\x{10FFFF}]"


def _code(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:X}}}"


def _times(node: Repeat) -> str:
    simple = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    return simple or f"{{{node.least},{'' if node.most is None else node.most}}}"


def _has_tokens(node: Node) -> bool:
    if isinstance(node, (Sequence, Choice)):
        return any(map(_has_tokens, node.items if isinstance(node, Sequence) else node.options))
    return isinstance(node, Token) or (isinstance(node, Repeat) and _has_tokens(node.item))


def _union(parts: Iterable[Ranges]) -> Ranges:
    return merged([item for part in parts for item in part])


def _overlap(a: Ranges, b: Ranges) -> bool:
    return any(low <= high2 and low2 <= high for low, high in a for low2, high2 in b)
