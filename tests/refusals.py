#!/usr/bin/env python3
"""What the program says when it refuses something, collected from the source, and the page that lists all of it.

usage: python tests/refusals.py     rewrites the lists of docs/troubleshooting.md

A message is the first argument of a call of one of the classes below, as a template with … for what is filled in. In
the page a comment `<!-- messages: FILES -->` begins the list of the messages of these files (globs); what a line of a
list says behind its message is written by hand and kept.
"""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "troubleshooting.md"
FOLDERS = ("pyggml", "engine", "server", "third_party")
# Exit status 2, downloads that fail, an HTTP status below 500 or 503, and what a script gets for its mistakes.
CLASSES = {
    "ConfigError", "ModelError", "UnsupportedArchitecture", "UnsupportedTokenizer", "UnsupportedValue", "MissingTensor",
    "DeviceLost", "PlanError", "RequestError", "PromptTooLong", "QueueFull", "TemplateError", "EngineError",
    "GBNFError", "BuildError", "DownloadError", "AllocationError", "DeviceError", "GGUFError", "ShapeError",
    "ClosedError",
    "StartError", "BadRequest", "NotAllowed", "NotFound", "TooLarge", "TooMany", "Unavailable",
}  # fmt: skip
OF_VALUES = {"ValueError"}  # of an option; the command line says which
HOLE = "…"
MIN_WORDED = 12  # characters of its own without which a template fits nearly everything
LIST = re.compile(r"(<!-- messages: ([^>]*?) -->\n)(.*?)(<!-- /messages -->\n)", re.DOTALL)
LINE = re.compile(r"^- (`+) ?(.*?) ?\1(.*)$", re.MULTILINE)
C_CALL = re.compile(r'\bfail\(w, ((?:"(?:[^"\\]|\\.)*"|PRI\w+|\s)+)')
C_HOLE = re.compile(r"%[-0-9.]*(?:ll)?[a-zA-Z]|%0?\d*\x00")


class Message(NamedTuple):
    """A template and the file that says it."""

    file: str
    text: str


class _Source(ast.NodeVisitor):
    """The messages of one file; `functions` are those of its package, by name."""

    def __init__(self, functions: dict[str, ast.FunctionDef], classes: set[str]) -> None:
        self._functions, self._classes = functions, classes
        self._around: list[ast.FunctionDef] = []
        self.found: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._around.append(node)
        self.generic_visit(node)
        self._around.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        k = 2 if name == "GGUFError" else 0
        if name in self._classes and len(node.args) > k:
            self.found += self._templates(node.args[k], self._around[-1:], 0)
        self.generic_visit(node)

    def _templates(self, node: ast.expr, around: list[ast.FunctionDef], depth: int) -> list[str]:
        """All that an expression may say."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                parts = [[part.value] if isinstance(part, ast.Constant) else [HOLE] for part in values]
                return ["".join(str(word) for word in words) for words in itertools.product(*parts)]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                pairs = itertools.product(self._templates(left, around, depth), self._templates(right, around, depth))
                return [a + b for a, b in pairs]
            case ast.IfExp(body=one, orelse=other) | ast.BoolOp(values=[one, other]):
                return self._templates(one, around, depth) + self._templates(other, around, depth)
            case ast.Call(func=ast.Name(id=name)) if name in self._functions and depth < 3:
                function = self._functions[name]
                returns = [n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value is not None]
                return [text for value in returns for text in self._templates(value, [function], depth + 1)]
            case ast.Call(func=ast.Attribute(value=ast.JoinedStr() | ast.Constant() as inner)):
                return self._templates(inner, around, depth)
            case ast.Name(id=name) if around and depth < 3:
                values = [
                    n.value for n in ast.walk(around[-1])
                    if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
                ]  # fmt: skip
                return [text for value in values for text in self._templates(value, around, depth + 1)] or [HOLE]
        return [HOLE]


def _is_shown(text: str) -> bool:
    """Whether a template has words of its own; others pass on what something else said."""
    return len(re.findall(r"\w{2,}", text.replace(HOLE, " "))) > 0


def _python_messages(folder: str) -> Iterator[Message]:
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / folder).rglob("*.py"))}
    functions = {n.name: n for tree in trees.values() for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
    for path, tree in trees.items():
        file = path.relative_to(ROOT).as_posix()
        source = _Source(functions, CLASSES | OF_VALUES if file.startswith("engine/cli/") else CLASSES)
        source.visit(tree)
        for text in source.found:
            flat = " ".join(re.sub(f"(?:{HOLE})+", HOLE, text).split())
            if _is_shown(flat):
                yield Message(file, flat)


def _c_messages() -> Iterator[Message]:
    for path in sorted((ROOT / "pyggml" / "native").glob("*.c")):
        for call in C_CALL.finditer(path.read_text()):
            words = re.findall(r'"((?:[^"\\]|\\.)*)"|(PRI\w+)', call[1])
            text = C_HOLE.sub(HOLE, "".join(literal or "\0" for literal, _ in words))
            yield Message(path.relative_to(ROOT).as_posix(), text)


def messages() -> list[Message]:
    """Every message once a file, in the order of files."""
    found = [*_c_messages(), *itertools.chain.from_iterable(map(_python_messages, FOLDERS))]
    return list(dict.fromkeys(found))


def _quoted(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def rewritten(page: str) -> str:
    """The page with its lists made anew. Raises LookupError for a file that no list is for."""
    patterns = [match[2].split() for match in LIST.finditer(page)]
    said: list[dict[str, None]] = [{} for _ in patterns]
    for message in messages():
        for k, globs in enumerate(patterns):
            if any(fnmatch(message.file, glob) for glob in globs):
                said[k][message.text] = None
                break
        else:
            raise LookupError(f"no list of {PAGE.name} is for {message.file}, which says {message.text!r}")
    lists = iter(said)

    def make(match: re.Match[str]) -> str:
        behind = {line[2]: line[3] for line in LINE.finditer(match[3])}
        lines = [f"- {_quoted(text)}{behind.get(text, '')}\n" for text in sorted(next(lists), key=str.casefold)]
        return match[1] + "".join(lines) + match[4]

    return LIST.sub(make, page)


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    texts = [line[2] for line in LINE.finditer(PAGE.read_text())]
    worded = [text for text in texts if len(text.replace(HOLE, "")) >= MIN_WORDED]
    return tuple(re.compile(".*".join(map(re.escape, text.split(HOLE))), re.DOTALL) for text in worded)


def is_listed(said: str) -> bool:
    """Whether somebody who sees these words finds them in a list of the page."""
    return any(pattern.search(said) for pattern in _patterns())


def main() -> int:
    """Rewrite the page."""
    PAGE.write_text(rewritten(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
