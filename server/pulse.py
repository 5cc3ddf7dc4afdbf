"""Whether an engine that has something to do gets on with it: one that hangs neither ends nor answers.

While requests are open, and until the engine says that it has none left, it is asked every few seconds how many steps
it has made. One that seems to hang is passed by; one that does so for long is ended, so that its requests end too.
The event loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from .errors import ApiError

EVERY_S = 2.0
SILENT_S = 10.0  # until no answer means that it hangs; texts that are being tokenized delay one
STALLED_S = 60.0  # until answers under way and no step mean that; the usual step of a slow device is shorter
# Until it is ended: many times what the first step of a large model takes on a processor, or a machine that swaps.
SILENT_END_S = 300.0
STALLED_END_S = 1800.0

Ask = Callable[[], Awaitable[Mapping[str, Any]]]


class Pulse:
    """What is known of one engine. `stuck` says why it is taken to hang; empty where it is not.

    `end` ends it and is told why, once.
    """

    def __init__(self, ask: Ask, is_busy: Callable[[], bool], end: Callable[[str], None]) -> None:
        self._ask, self._is_busy, self._end = ask, is_busy, end
        self._task: asyncio.Task[None] | None = None
        self.stuck = ""

    def watch(self) -> None:
        """Begin to look, unless that is being done; there is something to do from now on."""
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._look())

    def end(self) -> None:
        """The process has ended."""
        self.stuck = ""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _look(self) -> None:
        heard_s = moved_s = time.monotonic()
        n_steps = -1
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                status = await asyncio.wait_for(self._ask(), SILENT_S)
            except asyncio.TimeoutError:
                silent_s = time.monotonic() - heard_s
                self.stuck = f"has not answered for {silent_s:.0f} s"
                if silent_s >= SILENT_END_S:
                    self._end(self.stuck)
                    return
                continue
            except ApiError:  # it has ended
                self.stuck = ""
                return
            heard_s = time.monotonic()
            if status["n_steps"] != n_steps or not status["n_running"] or status["state"] != "ready":
                n_steps, moved_s = status["n_steps"], heard_s
            still_s = heard_s - moved_s
            self.stuck = f"has made no step for {still_s:.0f} s" if still_s >= STALLED_S else ""
            if still_s >= STALLED_END_S:
                self._end(self.stuck)
                return
            if not status["n_open"] and not self._is_busy():
                return
