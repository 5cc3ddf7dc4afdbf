"""Calls of the command `pyggml`, inside the test's process and on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from pyggml.engine.cli.main import main

HANG_S = 60.0
# The terminal becomes the controlling one, so that a typed Ctrl-C is a signal.
_ON_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from pyggml.engine.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


class Result(NamedTuple):
    """What a call gave."""

    status: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> Result:
    """Run the command in this process."""
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    return Result(status, *capsys.readouterr())


def spawn(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with nothing on standard input."""
    return subprocess.run(
        [sys.executable, "-m", "pyggml.engine.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_S,
        env=os.environ | environment,
    )


class Terminal:
    """The command with a person at a terminal."""

    def __init__(self, *arguments: object, environment: Mapping[str, str], n_columns: int = 0) -> None:
        self._keyboard, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40 if n_columns else 0, n_columns, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _ON_TERMINAL, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm"} | dict(environment),
        )
        os.close(theirs)
        self._seen = ""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._keyboard, keys.encode())

    def wait_for(self, pattern: str, *, again: str = "") -> re.Match[str]:
        """Read until the pattern is on the screen; what comes after it stays to be read.

        `again` are keys to press once a second: Python misses a Ctrl-C between its prompt and its wait for keys.
        """
        deadline = time.monotonic() + HANG_S
        while (match := re.search(pattern, self._seen)) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"{pattern!r} did not come; the screen has {self._seen!r}")
            if select.select([self._keyboard], [], [], 1)[0]:
                self._read(pattern)
            elif again:
                self.type(again)
        self._seen = self._seen[match.end() :]
        return match

    def _read(self, pattern: str) -> None:
        try:
            self._seen += os.read(self._keyboard, 65536).decode(errors="replace")
        except OSError:  # the other side is closed
            raise AssertionError(f"it ended before {pattern!r}; the screen has {self._seen!r}") from None

    def status(self) -> int:
        """Wait for the end; the exit status."""
        return self._process.wait(HANG_S)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._keyboard)
