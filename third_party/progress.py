"""One line that shows how far a build is; plain lines, seldom, where the output is not a terminal."""

from __future__ import annotations

import re
import shutil
import sys
import time

PLAIN_INTERVAL_S = 15.0
STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)$")


class Progress:
    """Shows Ninja's `[n/m] what` lines on standard error."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.started = time.monotonic()
        self.shown = 0.0
        self.is_terminal = sys.stderr.isatty()

    def step(self, line: str) -> bool:
        """Show a line of Ninja's output; return whether it was one of its steps."""
        match = STEP.match(line)
        if match is None:
            return False
        now = time.monotonic()
        if self.is_terminal:
            what = match[3].split(" ")[-1].rsplit("/", 1)[-1]
            self._rewrite(f"{self.title} [{match[1]}/{match[2]}] {what}")
        elif now - self.shown >= PLAIN_INTERVAL_S:
            self.shown = now
            print(f"{self.title} [{match[1]}/{match[2]}]", file=sys.stderr, flush=True)
        return True

    def end(self, has_failed: bool) -> None:
        """Leave one line that says how it ended and how long it took."""
        if self.is_terminal:
            self._rewrite("")
        how = "failed after" if has_failed else "done in"
        print(f"{self.title}: {how} {time.monotonic() - self.started:.0f} s", file=sys.stderr, flush=True)

    def _rewrite(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{text[:width]}", end="", file=sys.stderr, flush=True)
