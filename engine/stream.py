"""An answer as it comes: deltas for `for` and for `async for`."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from .formats.tools import ToolCall, joined_calls
from .request import Delta, FinishReason, Request, Stats, TokenLogprob


class Completion(str):
    """The text of a finished answer, with what else is known of it."""

    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    stats: Stats
    reasoning: str
    tool_calls: tuple[ToolCall, ...]

    @classmethod
    def from_deltas(cls, deltas: Sequence[Delta]) -> Completion:
        """Join an answer's deltas, the last of which has the finish reason."""
        self = cls("".join(delta.text for delta in deltas))
        last = deltas[-1]
        assert last.finish_reason is not None and last.stats is not None, "the last delta ends the answer"
        self.ids = tuple(id for delta in deltas for id in delta.ids)
        self.logprobs = tuple(entry for delta in deltas for entry in delta.logprobs)
        self.finish_reason = last.finish_reason
        self.stats = last.stats
        self.reasoning = "".join(delta.reasoning for delta in deltas)
        self.tool_calls = joined_calls(piece for delta in deltas for piece in delta.tool_calls)
        return self

    @property
    def text(self) -> str:
        """The plain string."""
        return str(self)


class Sink:
    """What running requests hold of a stream: where their events go.

    Apart from the Stream, so that requests do not keep a stream that its reader has dropped.
    """

    def __init__(self, tells_each: bool) -> None:
        self.tells_each = tells_each
        self.arrived: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        self.deltas: dict[int, list[Delta]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        self.event: asyncio.Event | None = None

    def emit(self, delta: Delta) -> None:
        """Take an event from the engine thread."""
        self.deltas[delta.index].append(delta)
        if not self.tells_each and delta.finish_reason is None:
            return
        self.arrived.put(delta)
        if self.loop is not None and self.event is not None and not self.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # the loop may close between the two
                self.loop.call_soon_threadsafe(self.event.set)


class Stream:
    """The deltas of one or more requests in the order they come.

    Without `tells_each` only the ends arrive, which spares waking the consumer for every token. Dropping
    or closing the stream early aborts what is left. A failed request raises its error from
    the iteration. One consumer at a time, in a thread or in an event loop.
    """

    def __init__(self, abort: Callable[[Request], None], *, tells_each: bool = True) -> None:
        self._abort = abort
        self._requests: list[Request] = []
        self._sink = Sink(tells_each)
        self._n_open = 0

    def add(self, request: Request) -> None:
        """Count a request whose events come here."""
        self._requests.append(request)
        self._sink.deltas[request.index] = []
        self._n_open += 1

    @property
    def emit(self) -> Callable[[Delta], None]:
        """Where a request sends its events."""
        return self._sink.emit

    def _taken(self, delta: Delta) -> Delta:
        if delta.finish_reason is not None:
            self._n_open -= 1
        if delta.error is not None:
            self.close()
            raise delta.error
        return delta

    def __iter__(self) -> Iterator[Delta]:
        return self

    def __next__(self) -> Delta:
        if not self._n_open:
            raise StopIteration
        try:
            return self._taken(self._sink.arrived.get())
        except KeyboardInterrupt:
            self.close()
            raise

    def __aiter__(self) -> AsyncIterator[Delta]:
        self._sink.event = asyncio.Event()
        self._sink.event.set()
        self._sink.loop = asyncio.get_running_loop()
        return self

    async def __anext__(self) -> Delta:
        if not self._n_open:
            raise StopAsyncIteration
        event = self._sink.event
        assert event is not None, "__aiter__ comes first"
        try:
            await asyncio.sleep(0)  # other tasks get their turn even when deltas come faster than they are read
            while True:
                event.clear()
                with contextlib.suppress(queue.Empty):
                    return self._taken(self._sink.arrived.get_nowait())
                await event.wait()
        except asyncio.CancelledError:
            self.close()
            raise

    @property
    def completions(self) -> list[Completion]:
        """The finished answers in the order of their prompts; complete once the stream has ended."""
        return [
            Completion.from_deltas(d) for _, d in sorted(self._sink.deltas.items()) if d and d[-1].finish_reason
        ]

    def close(self) -> None:
        """Abort the requests that have not ended. Closing twice is allowed."""
        self._n_open = 0
        requests, self._requests = self._requests, []
        for request in requests:
            self._abort(request)

    def __del__(self) -> None:
        if self._n_open:
            self.close()
