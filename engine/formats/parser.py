"""An answer's text, as it comes, into content, reasoning and tool calls.

Only what the format marks is taken out; all other text is content. A call shows once its name and the beginning of its
arguments are there, and then streams. What breaks off before stays text; what breaks off later keeps the arguments that
were sent, and the rest is text: nothing is lost. White space around reasoning and before a call is the format's and
dropped. The result does not depend on how the text is cut. One parser per answer.
"""

from __future__ import annotations

import contextlib
import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .reader import SPACE, Malformed, Reader, Steps, first_of
from .tools import Tool, ToolCallDelta

if TYPE_CHECKING:
    from .call_style import CallStyle

_ID_CHARS = string.ascii_letters + string.digits
N_ID_CHARS = 9  # what Mistral's templates ask for


class Pieces(NamedTuple):
    """What a piece of text added to an answer."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How a family's answers are laid out.

    Reasoning stands between opens and closes; `dropped` are further marks that are no content; `styles` read calls.
    Content stands between text_opens and text_closes, if there are such marks.
    """

    opens: str = ""
    closes: str = ""
    dropped: tuple[str, ...] = ()
    styles: tuple[CallStyle, ...] = ()
    text_opens: str = ""
    text_closes: str = ""


def _nowhere(text: str) -> None:
    """Before a parser has said where text goes."""


class CallReader(Reader):
    """A reader that also takes down calls. `tools` are those offered; text before `mark` has been used.

    `say` and `reason` take what a style finds to be content or reasoning.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        super().__init__()
        self.tools = {tool.name: tool for tool in tools}
        self.mark = 0
        self.n_calls = 0
        self.calls: list[ToolCallDelta] = []
        self.say: Callable[[str], None] = _nowhere
        self.reason: Callable[[str], None] = _nowhere

    def open_call(self, name: str, id: str | None = None) -> None:
        """A call begins: its name is known. What was read so far is used up."""
        made = "".join(secrets.choice(_ID_CHARS) for _ in range(N_ID_CHARS))
        self.calls.append(ToolCallDelta(self.n_calls, id=id or made, name=name))
        self.n_calls += 1
        self.mark = self.at

    def arguments(self, text: str) -> None:
        """More of the arguments of the call that began last."""
        if text:
            self.calls.append(ToolCallDelta(self.n_calls - 1, text))
        self.mark = self.at

    def used(self) -> None:
        """What was read so far was markup."""
        self.mark = self.at


class ChatParser:
    """Takes an answer's text in pieces; `push` and `finish` return what each adds.

    is_open: the prompt ends within reasoning; is_over: behind it. lead: the prompt ends with a mark that belongs to the
    answer.
    """

    def __init__(
        self,
        layout: Layout,
        tools: Sequence[Tool] = (),
        *,
        is_open: bool = False,
        is_over: bool = False,
        lead: str = "",
    ) -> None:
        self._layout = layout
        self._r = CallReader(tools)
        self._r.text = lead
        self._r.say, self._r.reason = self._add_content, self._reasoning_sink()
        styles = [style for style in layout.styles if tools or style.is_always]
        self._styles = {start: style for style in styles for start in style.starts}
        self._is_open = is_open
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._space = ""  # white space that is content only if more content follows
        self._drops_space = is_over
        self._heads = {mark[0] for mark in (*self._styles, *layout.dropped)}
        self._is_plain = False  # waiting for more content, with nothing held back
        self._steps = self._run()
        self._is_done = False

    @property
    def has_calls(self) -> bool:
        """Whether the answer called a tool."""
        return self._r.n_calls > 0

    def push(self, text: str) -> Pieces:
        """Take more text."""
        if self._is_plain and text and text[-1] not in SPACE and self._heads.isdisjoint(text):
            return Pieces(text)
        self._r.text += text
        self._advance()
        return self._taken()

    def finish(self) -> Pieces:
        """Say that the text has ended."""
        self._r.is_ended = True
        self._advance()
        return self._taken()

    def _advance(self) -> None:
        if not self._is_done:
            try:
                next(self._steps)
            except StopIteration:
                self._is_done = True

    def _taken(self) -> Pieces:
        pieces = Pieces("".join(self._content), "".join(self._reasoning), tuple(self._r.calls))
        self._content, self._reasoning, self._r.calls = [], [], []
        return pieces

    def _run(self) -> Steps[None]:
        if self._is_open:
            yield from self._read_reasoning()
        yield from self._begin()
        marks = [*self._styles, *self._layout.dropped]
        while (mark := (yield from self._read_content(marks))) is not None:
            if mark in self._styles:
                yield from self._read_calls(self._styles[mark], mark)
            else:
                self._drops_space = True
        self._content.append(self._space)

    def _begin(self) -> Steps[None]:
        """Reasoning, which may stand at the beginning only, and styles that have no mark of their own."""
        r, layout = self._r, self._layout
        while layout.closes:
            start = r.at
            yield from r.skip_space()
            if layout.opens and (yield from r.take(layout.opens)):
                yield from self._read_reasoning()
            elif (yield from r.take(layout.closes)):
                self._drops_space = True
            else:
                r.at = start
                break
        for style in layout.styles:
            if style.is_bare and r.tools:
                start = r.at
                yield from r.skip_space()
                if not (yield from self._read_calls(style, "")):
                    r.at = start

    def _read_reasoning(self) -> Steps[None]:
        r = self._r
        sink = self._reasoning_sink()
        with contextlib.suppress(Malformed):  # the answer may end while the model is thinking
            yield from r.stream(sink, self._layout.closes)
        self._drops_space = True
        r.used()

    def _reasoning_sink(self) -> Callable[[str], None]:
        """Takes reasoning, but for the white space around it."""
        held = ""
        is_first = True

        def sink(text: str) -> None:
            nonlocal held, is_first
            text = text.lstrip(SPACE) if is_first else text
            if text:
                is_first = False
                whole = held + text
                kept = whole.rstrip(SPACE)
                held = whole[len(kept) :]
                self._reasoning.append(kept)

        return sink

    def _read_content(self, marks: Sequence[str]) -> Steps[str | None]:
        """Pass content on up to the next mark, and move behind that; None at the end of the text."""
        r = self._r
        while True:
            at, mark, safe = first_of(r.text, r.at, marks)
            self._add_content(r.text[r.at : safe])
            r.text, r.at, r.mark = r.text[safe:], 0, 0
            if mark:
                r.at = len(mark)
                return mark
            self._is_plain = not r.text and not self._space and not self._drops_space
            is_more = yield from r.more()
            self._is_plain = False
            if not is_more:
                self._add_content(r.text)
                r.text = ""
                return None

    def _add_content(self, text: str) -> None:
        if self._drops_space:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._drops_space = False
        whole = self._space + text
        kept = whole.rstrip(SPACE)
        self._space = whole[len(kept) :]
        if kept:
            self._content.append(kept)

    def _read_calls(self, style: CallStyle, start: str) -> Steps[bool]:
        """Read the calls behind a mark; what cannot be read is content. False where a bare style found none."""
        r = self._r
        n_before = r.n_calls
        r.mark = r.at - len(start)
        try:
            yield from style.read(r, start)
            r.used()
        except Malformed:
            if not start and r.n_calls == n_before:
                return False
            if r.n_calls == n_before:
                self._add_content(start)
                r.mark += len(start)
            r.at = r.mark
        if r.n_calls > n_before:
            self._space, self._drops_space = "", True
        return True
