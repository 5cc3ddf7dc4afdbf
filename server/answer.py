"""An answer as the front receives it: pieces of one request, in the order they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from .errors import ApiError, BadRequest, ServerFault, TooMany, Unavailable
from .messages import Failed, Piece


def error_of(failed: Failed) -> ApiError:
    """What a client is told of a request that the engine ended."""
    if failed.kind == "too_long":
        return BadRequest(failed.message, code="context_length_exceeded")
    if failed.kind in ("request", "template"):
        return BadRequest(failed.message)
    if failed.kind == "queue_full":
        return TooMany(failed.message, code="queue_full", retry_after_s=1)
    if failed.kind == "engine":
        return Unavailable(failed.message, code="engine_unavailable")
    return ServerFault(failed.message, code="generation_failed")


class Answer:
    """The pieces of a request; ends with the last piece of each of its `n` indices, or raises ApiError.

    `n_unread` and `n_each` are about how many tokens of the prompt are to be evaluated and about how much each index
    takes, both in prompt tokens.
    """

    def __init__(self, id: int, n: int, leave: Callable[[Answer], None]) -> None:
        self.id = id
        self.n_unread = 0
        self.n_each = 0
        self.n_prompt: list[int] = []
        self._n_open = self._n_to_come = n
        self._leave = leave
        self._arrived: deque[Piece] = deque()
        self._error: ApiError | None = None
        self._is_accepted = False
        self._wake = asyncio.Event()
        self.watch: Callable[[Piece], None] = lambda piece: None

    def accept(self, n_prompt: list[int]) -> None:
        """The engine has taken the request."""
        self.n_prompt, self._is_accepted = n_prompt, True
        self._wake.set()

    def add(self, piece: Piece) -> None:
        """A piece has come."""
        self.watch(piece)
        self.n_unread = 0
        self._n_to_come -= piece.finish_reason is not None
        self._arrived.append(piece)
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """The request has ended with an error."""
        self._error = error
        self._wake.set()

    async def accepted(self) -> list[int]:
        """Wait until the engine has checked the request; the number of tokens of each prompt."""
        while not self._is_accepted and self._error is None:
            await self._next_event()
        if self._error is not None and not self._arrived:
            raise self._error
        return self.n_prompt

    async def _next_event(self) -> None:
        self._wake.clear()
        await self._wake.wait()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self

    async def __anext__(self) -> Piece:
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if not self._n_open:
                raise StopAsyncIteration
            await self._next_event()
        piece = self._arrived.popleft()
        self._n_open -= piece.finish_reason is not None
        return piece

    @property
    def n_open(self) -> int:
        """Indices whose last piece has not come."""
        return self._n_to_come

    @property
    def n_tokens_to_do(self) -> int:
        """About how much there is still to do, in tokens of a prompt."""
        return self.n_unread + self._n_to_come * self.n_each

    @property
    def is_over(self) -> bool:
        """Whether everything was received."""
        return self._error is not None or not self._n_open

    def close(self) -> None:
        """Receive nothing more; what still runs is cancelled. Closing twice is allowed."""
        self._leave(self)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
