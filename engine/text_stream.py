"""Text of one answer as it grows: bytes to characters, then stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from .detokenizer import Detokenizer
from .stop import StopMatcher


class TextStream:
    """Turns token ids into text that is safe to send.

    The pieces joined equal the whole answer up to, and without, the first stop string.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)

    @property
    def stop_text(self) -> str | None:
        """The stop string that was met, if any."""
        return self._stops.matched

    @property
    def stopped(self) -> bool:
        """Whether a stop string was met."""
        return self._stops.matched is not None

    def push(self, id: int) -> str:
        """The text that this token makes certain."""
        return self._stops.push(self._detokenizer.push(id))

    def finish(self) -> str:
        """The text held back until now; empty after a stop string."""
        if self.stopped:
            return ""
        tail = self._stops.push(self._detokenizer.finish())
        return tail if self.stopped else tail + self._stops.finish()
