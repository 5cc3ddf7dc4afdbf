"""A prompt handed to the engine: the handle that its sender keeps.

Events go to the callback that was given with the prompt, from the engine's thread: each of the `n`
answers gets deltas with its `index`, the last of which alone has a finish reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .request import Request


class Submission:
    """Running or finished answers to one prompt. Dropping it does not end them."""

    def __init__(self, requests: Sequence[Request], abort: Callable[[Request], None]) -> None:
        self._requests = tuple(requests)
        self._abort = abort

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self._requests[0].prompt_ids)

    @property
    def n(self) -> int:
        """The number of answers."""
        return len(self._requests)

    @property
    def is_finished(self) -> bool:
        """Whether every answer has had its last event."""
        return all(request.is_finished for request in self._requests)

    def cancel(self) -> None:
        """End the answers that are still running; each gets its last event, with the reason ABORT.

        Their slots are free from the next step on. Any thread may call; calling twice is allowed.
        """
        for request in self._requests:
            if not request.is_finished:
                self._abort(request)
