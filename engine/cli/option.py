"""One option of the command line: its names, its kind of value, its default, who takes it.

A kind reads the value's text, whether that came from the command line, the environment or a file,
and raises ValueError saying what is needed. Knows nothing of where the text came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

TRUE_WORDS = ("1", "true", "yes", "on")
_FALSE_WORDS = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Kind:
    """A kind of value. `metavar` stands for it in help; `is_list` where commas join several values, `is_file` the path
    of a file that is read."""

    read: Callable[[str], Any]
    metavar: str
    is_list: bool = False
    is_flag: bool = False
    is_file: bool = False


def _read_flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in TRUE_WORDS + _FALSE_WORDS:
        raise ValueError("true or false is needed")
    return word in TRUE_WORDS


def text(metavar: str = "TEXT") -> Kind:
    """Any text, as `NAME,...` several with commas; bytes of the command line that are no UTF-8 become U+FFFD."""
    is_list = metavar.endswith(",...")
    return Kind(lambda value: value.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), metavar, is_list)


def path(metavar: str = "FILE", *, is_read: bool = True) -> Kind:
    """A path, byte for byte: of a file that is read, or else of one to write or a folder."""

    def read(value: str) -> str:
        if not value:
            raise ValueError("the path of a file is needed")
        return value

    return Kind(read, metavar, is_file=is_read)


def whole(low: int | None = None, metavar: str = "N") -> Kind:
    """A whole number of at least `low`."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = None
        if number is None or (low is not None and number < low):
            raise ValueError("a whole number is needed" + ("" if low is None else f", at least {low}"))
        return number

    return Kind(read, metavar)


def wholes(low: int, metavar: str = "N[,N…]") -> Kind:
    """Whole numbers of at least `low`, joined by commas."""

    def read(value: str) -> list[int]:
        try:
            numbers = [int(word) for word in value.split(",")]
        except ValueError:
            numbers = []
        if not numbers or min(numbers) < low:
            raise ValueError(f"whole numbers with commas between them are needed, each at least {low}")
        return numbers

    return Kind(read, metavar, is_list=True)


def real(metavar: str = "X") -> Kind:
    """A decimal number; its range is for whoever uses it to check."""

    def read(value: str) -> float:
        try:
            return float(value)
        except ValueError:
            raise ValueError("a number is needed") from None

    return Kind(read, metavar)


def choice(names: Iterable[str]) -> Kind:
    """One of several words."""
    words = tuple(names)

    def read(value: str) -> str:
        if value.lower() not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return value.lower()

    return Kind(read, "|".join(words))


def _read_bias(value: str) -> tuple[int, float]:
    token, _, bias = value.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise ValueError("a token id and a number are needed, as in 42=-5") from None


FLAG = Kind(_read_flag, "", is_flag=True)
BIAS = Kind(_read_bias, "ID=X")


@dataclass(frozen=True)
class Option:
    """A row of the table.

    `name` is the long name, the key in a file and, in capitals, the end of the environment name.
    `commands` take it; `default_text` tells a default that is not a plain value; `repeatable` ones
    gather a list, `positional` ones stand on the command line without a name, `required` ones must
    come from somewhere.
    """

    name: str
    kind: Kind
    help: str
    commands: tuple[str, ...]
    example: str = ""
    default: Any = None
    default_text: str = ""
    short: tuple[str, ...] = ()
    repeatable: bool = False
    positional: bool = False
    required: bool = False

    @property
    def environment(self) -> str:
        """The environment name."""
        return "PYGGML_" + self.name.upper().replace("-", "_")

    @property
    def flags(self) -> tuple[str, ...]:
        """The names on the command line, the long one first."""
        return (self.name.upper(),) if self.positional else (f"--{self.name}", *self.short)

    @property
    def shown_default(self) -> str:
        """The default for help and documentation."""
        if self.required:
            return "must be given"
        if self.default_text:
            return self.default_text
        if self.kind.is_flag:
            return "on" if self.default else "off"
        if isinstance(self.default, list):
            return ",".join(map(str, self.default)) or "none"
        return "none" if self.default is None else str(self.default)

    @property
    def shown_example(self) -> str:
        """How it is used, one instance."""
        if self.positional:
            return self.example
        if self.kind.is_flag:
            return f"--no-{self.name}" if self.default else f"--{self.name}"
        return f"--{self.name} {self.example}"
