"""What a parser and a grammar need of a way to write tool calls.

A style reads the calls behind its marks and gives the grammar that forces them. The families' marks and keys, facts of
their templates, are in `families.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .lark import LarkText
from .parser import CallReader
from .reader import Steps
from .tools import Tool


class CallStyle(Protocol):
    """A way to write calls.

    starts: the marks behind which calls stand. is_bare: calls may also begin an answer without a mark. is_always: the
    marks count without tools, too.
    """

    @property
    def starts(self) -> tuple[str, ...]: ...

    @property
    def is_bare(self) -> bool: ...

    @property
    def is_always(self) -> bool: ...

    def read(self, r: CallReader, start: str) -> Steps[None]:
        """Read the calls behind the mark `start`. Raises: Malformed."""

    def lark(self, g: LarkText, tools: Sequence[Tool], is_parallel: bool) -> str:
        """The grammar of one call or, with is_parallel, of one or more."""

    def written(self, calls: Sequence[tuple[str, str]]) -> str | None:
        """Calls (name and JSON arguments) as the model writes them, None where that is the template's to do."""
