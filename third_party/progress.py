"""One line that shows how far a build is and how long it takes; plain lines, seldom, where there is no terminal.

A thread keeps the time: what is compiled or fetched may say nothing for minutes.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from types import TracebackType

TICK_S = 1.0
PLAIN_INTERVAL_S = 15.0
STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


class Progress:
    """Shows a title, Ninja's `[n/m] what` and the seconds on standard error while its block runs."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.step_shown = ""
        self.has_failed = False
        self.started = time.monotonic()
        self.shown = -PLAIN_INTERVAL_S
        self.is_terminal = sys.stderr.isatty()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> Progress:
        self._show()
        self._clock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave one line that says how it ended and how long it took."""
        self._ended.set()
        self._clock.join()
        if self.is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr)
        how = "failed after" if self.has_failed or error else "done in"
        print(f"{self.title}: {how} {self._seconds()} s", file=sys.stderr, flush=True)

    def step(self, line: str) -> bool:
        """Take a line of Ninja's output; return whether it was one of its steps."""
        match = STEP.match(line)
        if match is None:
            return False
        self.step_shown = f" {match[1]}/{match[2]}"
        return True

    def _seconds(self) -> int:
        return round(time.monotonic() - self.started)

    def _tick(self) -> None:
        while not self._ended.wait(TICK_S):
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        text = f"{self.title}{self.step_shown}, {self._seconds()} s"
        if self.is_terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
        elif now - self.shown >= PLAIN_INTERVAL_S:
            self.shown = now
            print(text, file=sys.stderr, flush=True)
