"""Decides what runs next: which requests get slots, whether the next step is prefill or decode.

Pure Python over plain integers; knows nothing of tensors, devices or text. Called from the engine
thread only. A free slot keeps the tokens whose K and V it holds, so that a request with the same
beginning reuses them; a prompt's last token is always evaluated anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from .batch import Batch, Phase, Row
from .request import Request


class Scheduler:
    """Queues and slots. Prefill chunks and decode steps take turns where both are waiting."""

    def __init__(
        self, *, n_slots: int, max_chunk: int, max_read: int | None = None, reuse_prefix: bool = True
    ) -> None:
        self.n_slots = n_slots
        self.max_read = max_read or max_chunk
        self.max_chunk = max_chunk
        self.reuse_prefix = reuse_prefix
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        self._held: list[list[int]] = [[] for _ in range(n_slots)]
        self._last_used = [0] * n_slots
        self._clock = 0
        self._decoded_last = True

    @property
    def is_idle(self) -> bool:
        """Whether no request is waiting or running."""
        return not self.waiting and not self.running

    def add(self, request: Request) -> None:
        """Put a request at the end of the queue."""
        self.waiting.append(request)

    def requests(self) -> Iterator[Request]:
        """All requests that have not finished."""
        yield from tuple(self.running.values())
        yield from tuple(self.waiting)

    def schedule(self) -> Batch | None:
        """The next step, or None when there is nothing to do."""
        self._admit()
        prefilling = [r for r in self.running.values() if r.is_prefilling]
        decoding = [r for r in self.running.values() if not r.is_prefilling]
        if prefilling and (self._decoded_last or not decoding):
            self._decoded_last = False
            return self._prefill(min(prefilling, key=lambda r: r.arrived_s))
        self._decoded_last = True
        return self._decode(decoding) if decoding else None

    def _prefill(self, request: Request) -> Batch:
        start, n_prompt, reader = request.n_past, len(request.prompt_ids), request.reader
        n_most = self.max_chunk if reader is None else min(reader.max_rows or self.max_read, self.max_chunk)
        stop = min(start + n_most, n_prompt)
        wants_logits = stop == n_prompt and request.max_new > 0
        row = Row(request, start, tuple(request.prompt_ids[start:stop]), wants_logits, reader is not None)
        return Batch(Phase.PREFILL, (row,))

    def _decode(self, requests: Sequence[Request]) -> Batch:
        ordered = sorted(requests, key=lambda r: r.slot or 0)
        rows = (Row(r, r.n_past, tuple(r.tokens(r.n_past, r.n_past + 1)), True) for r in ordered)
        return Batch(Phase.DECODE, tuple(rows))

    def ran(self, batch: Batch) -> None:
        """Note that the batch's tokens are in the cache."""
        for row in batch.rows:
            row.request.n_past = row.start + len(row.ids)
            held = self._held[row.slot]
            del held[row.start :]
            held.extend(row.ids)

    def n_held(self, slot: int) -> int:
        """Tokens that a slot holds."""
        return len(self._held[slot])

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Take a finished request out of its slot or of the queue."""
        if request.slot is not None and self.running.get(request.slot) is request:
            del self.running[request.slot]
            if not keep:
                self._held[request.slot].clear()
        elif request in self.waiting:
            self.waiting.remove(request)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.n_slots:
            request = self.waiting.popleft()
            slot, n_cached = self._best_slot(request.prompt_ids)
            if request.reader is not None or not request.reuses_prefix:
                n_cached = 0
            self._clock += 1
            self._last_used[slot] = self._clock
            del self._held[slot][n_cached:]
            request.begin(slot, n_cached)
            self.running[slot] = request

    def _best_slot(self, ids: Sequence[int]) -> tuple[int, int]:
        """The free slot with the longest common beginning, else the least recently used one.

        The lowest free slot wins among empty ones, so that few requests stay close together.
        """
        free = [s for s in range(self.n_slots) if s not in self.running]
        if self.reuse_prefix:
            n_common, slot = max((_n_common(self._held[s], ids), -s) for s in free)
            if n_common:
                return -slot, min(n_common, len(ids) - 1)
        return min(free, key=lambda s: (self._last_used[s], s)), 0


def _n_common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b):
        if x != y:
            break
        n += 1
    return n
