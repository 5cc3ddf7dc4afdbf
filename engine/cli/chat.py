"""A chat on a terminal: lines in, answers out, until /exit or the end of input.

Ctrl-C stops an answer and not the chat; what had come stays in the conversation. Typed lines are
kept for the next chat in $XDG_STATE_HOME/pyggml/chat_history.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import EngineError
from ..llm import LLM
from ..stream import Stream
from . import answers
from .terminal import one_line, printable, say

_MAX_HISTORY = 1000
_COMMANDS = {
    "/clear": "begin a new conversation",
    "/exit": "leave (or Ctrl-D)",
}
_PROMPT = "> "


class Chat:
    """One conversation. A plain one continues each line on its own and remembers nothing."""

    def __init__(self, llm: LLM, *, system: str | None, is_plain: bool, sampling: dict[str, Any]) -> None:
        self._llm = llm
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._first)
        self._is_plain = is_plain
        self._sampling = sampling

    def loop(self) -> int:
        """Talk until the person leaves; the exit status."""
        say("; ".join(f"{name}: {what}" for name, what in _COMMANDS.items()) + "; Ctrl-C: stop an answer")
        with _history():
            while True:
                try:
                    line = _read_line()
                    if line == "/exit":
                        return 0
                    self._take(line)
                except KeyboardInterrupt:
                    say("")
                except EOFError:
                    say("")
                    return 0

    def _take(self, line: str) -> None:
        if line == "/clear":
            self._messages = list(self._first)
        elif line.startswith("/") and line[1:].isalpha():
            say(f"there is no {line}; there are {', '.join(_COMMANDS)}")
        elif line.strip():
            try:
                self._answer(line)
            except EngineError as error:
                say(one_line(str(error)))

    def _answer(self, line: str) -> None:
        if self._is_plain:
            _Reply(self._llm.generate(line, stream=True, **self._sampling)).show()
            return
        messages = [*self._messages, {"role": "user", "content": line}]
        reply = _Reply(self._llm.chat(messages, stream=True, **self._sampling))
        text = reply.show()
        if text:
            self._messages = [*messages, {"role": "assistant", "content": text}]


class _Reply:
    """An answer that Ctrl-C may stop."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def show(self) -> str:
        """Print it as it comes; returns what came."""
        text = ""
        try:
            for delta in self._stream:
                text += delta.text
                print(answers.dimmed(delta.reasoning) + printable(delta.text), end="", flush=True)
        except KeyboardInterrupt:
            self._stream.close()
            say("\n[stopped]")
            return text
        print(flush=True)
        (completion,) = self._stream.completions
        say(answers.stats_line(completion.stats, completion.finish_reason))
        return text


def _read_line() -> str:
    if sys.stdout.isatty():
        return input(_PROMPT)
    print(_PROMPT, end="", file=sys.stderr, flush=True)
    return input()


def _history_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "pyggml" / "chat_history"


@contextlib.contextmanager
def _history() -> Iterator[None]:
    """Line editing with the history of earlier chats, where this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    path = _history_path()
    with contextlib.suppress(FileNotFoundError):
        readline.read_history_file(path)
    try:
        yield
    finally:
        readline.set_history_length(_MAX_HISTORY)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(path)
        except OSError as error:
            say(f"the history was not kept: {error}")
