"""Messages on their way to the front: any thread puts, the event loop sends all that has gathered as one frame."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence

from .messages import FromEngine


class Outbox:
    """Gathers messages until the loop's next turn. Made on the loop's thread."""

    def __init__(self, write: Callable[[Sequence[FromEngine]], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._messages: list[FromEngine] = []
        self._is_closed = False

    def put(self, message: FromEngine) -> None:
        """Send a message; from any thread."""
        with self._lock:
            self._messages.append(message)
            is_first = len(self._messages) == 1
        if is_first:
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to hear it
                self._loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Send what has gathered; on the loop's thread."""
        with self._lock:
            messages, self._messages = self._messages, []
        if messages and not self._is_closed:
            self._write(messages)

    def close(self) -> None:
        """Send nothing more: nobody is left to hear it."""
        self._is_closed = True
