"""Whether an engine's process that has ended is started again, and after how long.

At most MAX_RESTARTS times in RESTART_WINDOW_S. An only engine is started again at once, and not where that is of no
use: it never was ready, or its device is lost. One of several replicas has time, since the others answer: it is tried
again in any case, after a pause that doubles.
"""

from __future__ import annotations

import time

MAX_RESTARTS = 3
RESTART_WINDOW_S = 300.0
FIRST_PAUSE_S = 1.0


class Restarts:
    """The restarts of one engine. With `is_on` False there are none."""

    def __init__(self, *, is_on: bool, is_alone: bool) -> None:
        self._is_on, self._is_alone = is_on, is_alone
        self._at: list[float] = []

    def pause_s(self, *, was_ready: bool, is_final: bool) -> float | None:
        """Seconds until the next start; None where there is none. Asked once for each end."""
        if not self._is_on or (self._is_alone and (is_final or not was_ready)):
            return None
        now = time.monotonic()
        self._at = [at for at in self._at if now - at < RESTART_WINDOW_S] + [now]
        if len(self._at) > MAX_RESTARTS:
            return None
        return 0.0 if self._is_alone else FIRST_PAUSE_S * 2 ** (len(self._at) - 1)
