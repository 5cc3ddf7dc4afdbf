"""Stop strings in streamed text.

What may be sent is all text that cannot belong to a stop string any more; the rest is held back, so no part of a
matched stop string is ever sent and nothing is lost when the text ends. The stop string that starts first wins,
whatever the cuts of the stream; to know it, a match may have to wait for an earlier one that has only begun.
Knows text only, no tokens. One matcher per sequence; not shared between threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import RequestError


def normalize_stops(value: None | str | Sequence[str]) -> tuple[str, ...]:
    """Return a request's stop strings without repetitions; None and an empty list mean none.

    Raises: RequestError for an empty string (it would match at once) and for anything else than strings.
    """
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else list(value)
    for stop in stops:
        if not isinstance(stop, str):
            raise RequestError(f"stop: expected a string or a list of strings, got {type(stop).__name__}")
        if not stop:
            raise RequestError("stop: an empty string would end every answer at once; leave it out")
    return tuple(dict.fromkeys(stops))


class StopMatcher:
    """Looks for stop strings in the text of one sequence; `matched` is the one found, if any."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = normalize_stops(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, delta: str) -> str:
        """Return the text that is safe to send after this piece; nothing more once a stop string matched."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return delta
        text = self._held + delta
        start, stop = self._first_match(text)
        begun = self._begun_at(text)
        if stop is not None and start <= begun:
            self.matched = stop
            self._held = ""
            return text[:start]
        cut = min(start, begun)
        self._held = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        """Return the text that was held back, up to a stop string in it; call it once, when the text has ended."""
        text, self._held = self._held, ""
        start, self.matched = self._first_match(text) if self.matched is None else (0, self.matched)
        return text[:start]

    def _first_match(self, text: str) -> tuple[int, str | None]:
        """Where the first whole stop string starts; of two that start there the shorter, which was whole first."""
        found = [(start, len(stop), stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return len(text), None
        start, _, stop = min(found)
        return start, stop

    def _begun_at(self, text: str) -> int:
        """The first place from which the rest of the text could become a stop string."""
        begun = len(text)
        for stop in self._stops:
            for n in range(min(len(stop) - 1, len(text)), len(text) - begun, -1):
                if text.endswith(stop[:n]):
                    begun = len(text) - n
                    break
        return begun
