"""The terminal: lines on standard error, text that cannot steer it, a bar while loading."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable, Iterator

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Text with control characters other than tab and newline shown as escapes.

    Names in model files and answers of models must not move a terminal's cursor or change its title.
    """
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def one_line(text: str) -> str:
    """Printable text without line breaks."""
    return printable(" ".join(text.split()))


def say(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


def accept_any_text() -> None:
    """Let standard streams replace what their encoding lacks, and not fail."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def loading_bar(is_wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes loaded on standard error, where that is a terminal; yields None elsewhere."""
    if not is_wanted or not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    with tqdm(
        desc="loading", unit="B", unit_scale=True, unit_divisor=1024, leave=False, file=sys.stderr
    ) as bar:

        def show(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield show


@contextlib.contextmanager
def counting_bar(is_wanted: bool, desc: str, total: int, unit: str) -> Iterator[Callable[[int], object]]:
    """A bar of work done on standard error, where that is a terminal; yields what advances it."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda n: None
        return
    from tqdm import tqdm

    with tqdm(desc=desc, total=total, unit=unit, leave=False, file=sys.stderr) as bar:
        yield bar.update
