"""How long steps take, and how many prompt tokens one may have while answers are running.

Knows seconds and counts only. Engine thread only.
"""

from __future__ import annotations

from .errors import ConfigError

MAX_GAP_MS = 200.0
MIN_CHUNK = 32
SOLO_GAPS = 10
_FIRST_CHUNK = 128  # before anything was measured


def check_gap(max_gap_ms: float) -> None:
    """Raise ConfigError for a gap that makes no sense."""
    if isinstance(max_gap_ms, bool) or not isinstance(max_gap_ms, (int, float)) or not max_gap_ms > 0:
        raise ConfigError(f"max-gap = {max_gap_ms!r}; a number of milliseconds above 0 is needed")


class Pace:
    """Measured speed of prompt tokens and of single decode steps.

    A running answer waits for about `max_gap_ms` at most for a step with prompt tokens. Until a speed is known a step
    that nobody waits for has `max_first` at most.
    """

    def __init__(self, max_chunk: int, max_gap_ms: float = MAX_GAP_MS, max_first: int | None = None) -> None:
        self._max_chunk = max_chunk
        self._max_first = max_chunk if max_first is None else min(max_first, max_chunk)
        self._max_gap_s = max_gap_ms / 1000
        self._tok_per_s = 0.0
        self._decode_s = 0.0
        self._spent_s = 0.0  # on prompts since the last decode step

    def note_prefill(self, n_tokens: int, seconds: float) -> None:
        """A step evaluated so many prompt tokens; few say little about speed."""
        self._spent_s += seconds
        if n_tokens >= MIN_CHUNK and seconds > 0:
            speed = n_tokens / seconds
            self._tok_per_s = (self._tok_per_s + speed) / 2 if self._tok_per_s else speed

    def note_decode(self, seconds: float) -> None:
        """A step decoded one token of one or several answers."""
        self._spent_s = 0.0
        if seconds > 0:
            self._decode_s = min(self._decode_s * 1.01 or seconds, seconds)

    def chunk(self, *, goes_on: bool = False) -> int:
        """Prompt tokens of a step that running answers wait for: what takes about max_gap_ms, at least 32.

        After another such step none, or where it `goes_on` what fits into the rest of that time.
        """
        if not self._spent_s:
            return self._fitting(self._max_gap_s, _FIRST_CHUNK)
        left_s = self._max_gap_s - self._spent_s
        return self._fitting(left_s, 0) if goes_on and self._tok_per_s * left_s >= MIN_CHUNK else 0

    @property
    def solo_chunk(self) -> int:
        """Prompt tokens of a step that no answer waits for: others may come, and its own request may be cancelled."""
        return self._fitting(SOLO_GAPS * self._max_gap_s, self._max_first)

    def _fitting(self, seconds: float, at_first: int) -> int:
        """The largest of 32, 48, 64, 96, 128, ... tokens that take no longer; few sizes, since each is a plan."""
        if not self._tok_per_s:
            return min(self._max_chunk, at_first)
        n = max(MIN_CHUNK, int(self._tok_per_s * seconds))
        power = 1 << (n.bit_length() - 1)
        return min(self._max_chunk, power * 3 // 2 if n >= power * 3 // 2 else power)

    @property
    def n_free(self) -> int:
        """Prompt tokens that take as long as a decode step: padding up to there is cheaper than another step."""
        return int(self._tok_per_s * self._decode_s)
