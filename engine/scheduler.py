"""Decides what runs next: which requests get slots, whether the next step is prefill or decode.

Pure Python over plain integers; knows nothing of tensors, devices or text. Called from the engine thread only.

- Requests get slots in the order in which they came. A slot has room for a whole context, so a request that has one is
  never put off again.
- A step is prefill, of one prompt or of several short ones in neighbouring slots, or decode, of every request whose
  prompt is evaluated but for its last token. Where both wait they take turns, and a prefill step is then so short that
  running answers wait for about `max_gap_ms`; while more prompts than answers are under way, several steps may share
  that time. Prompts are evaluated in the order in which they came.
- A prompt whose beginning is being evaluated for another request waits for that and takes a copy; so do the answers to
  one prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from .batch import Batch, Limits, Phase, Row
from .pace import MAX_GAP_MS, Pace
from .prefix_cache import PrefixCache
from .prefix_tree import n_common
from .request import PromptReader, Request


class Scheduler:
    """Queues and slots."""

    def __init__(self, cache: PrefixCache, limits: Limits, n_slots: int, max_gap_ms: float = MAX_GAP_MS) -> None:
        self.n_slots = n_slots
        self.limits = limits
        self.cache = cache
        self.pace = Pace(limits.max_chunk, max_gap_ms, limits.max_first)
        self.waiting: deque[Request] = deque()
        self.running: dict[int, Request] = {}
        self._following: dict[Request, tuple[Request, int]] = {}

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
        self._catch_up()
        prefilling: list[Request] = []
        decoding: list[Request] = []
        for request in self.running.values():
            if request not in self._following:
                (prefilling if request.is_prefilling else decoding).append(request)
        if not decoding:
            return self._prefill(prefilling, self.pace.solo_chunk) if prefilling else None
        limit = self.pace.chunk(goes_on=len(prefilling) > len(decoding))
        return self._prefill(prefilling, limit) if prefilling and limit else self._decode(decoding)

    def go_on(self) -> Batch | None:
        """The decode step that is known to come next (see Batch.goes_on), None where all its requests have left."""
        decoding = [r for r in self.running.values() if not r.is_prefilling]
        return self._decode(decoding) if decoding else None

    def _prefill(self, requests: Sequence[Request], limit: int) -> Batch:
        first = min(requests, key=lambda r: r.arrived_s)
        if first.reader is not None:
            return Batch(Phase.PREFILL, (self._reading(first, first.reader, limit),))
        by_slot = {r.slot: r for r in requests if r.reader is None and r.slot is not None}
        rows = [self._chunk(r, limit) for r in self._beside(first, by_slot, min(limit, self.limits.max_shared))]
        return Batch(Phase.PREFILL, tuple(rows))

    def _chunk(self, request: Request, most: int, *, is_read: bool = False) -> Row:
        start, n_prompt = request.n_past, len(request.prompt_ids)
        stop = min(start + most, n_prompt)
        wants_logits = stop == n_prompt and request.max_new > 0
        return Row(request, start, tuple(request.prompt_ids[start:stop]), wants_logits, is_read)

    def _reading(self, request: Request, reader: PromptReader, limit: int) -> Row:
        """The next stretch of a prompt that is read: up to the first result that is wanted, or from there on."""
        limit = self.limits.max_first if reader.is_steady else limit
        n_unread = reader.first - request.n_past
        if n_unread > 0:
            return self._chunk(request, min(n_unread, reader.max_rows or limit, limit))
        most = min(reader.max_rows or self.limits.max_read, self.limits.micro_batch, limit)
        return self._chunk(request, most, is_read=True)

    def _beside(self, first: Request, by_slot: Mapping[int, Request], limit: int) -> list[Request]:
        """The first prompt and those in the slots beside it that share its step without much padding.

        All are padded to the longest: that may cost as much as the steps that it saves, and no more than the limit.
        """
        assert first.slot is not None, "a running request has a slot"
        low = high = first.slot
        longest = total = first.n_left
        while longest <= limit // 2:
            for slot in (high + 1, low - 1):
                n = by_slot[slot].n_left if slot in by_slot else 0
                n_rows, wide = high - low + 2, max(longest, n)
                n_padding = n_rows * wide - total - n
                if n and n_rows * wide <= limit and n_padding <= (n_rows - 1) * self.pace.n_free:
                    low, high, longest, total = min(low, slot), max(high, slot), wide, total + n
                    break
            else:
                break
        return [by_slot[slot] for slot in range(low, high + 1)]

    def _decode(self, requests: Sequence[Request]) -> Batch:
        ordered = sorted(requests, key=lambda r: r.slot or 0)
        rows = tuple(Row(r, r.n_past, (r.last_id,), True) for r in ordered)
        return Batch(Phase.DECODE, rows, self._going_on(ordered))

    def _going_on(self, decoding: Sequence[Request]) -> tuple[bool, ...]:
        """Batch.goes_on: empty where a prompt may come before the next decode step, or a sampler choose otherwise."""
        if len(decoding) < len(self.running) or not all(r.takes_the_likeliest for r in decoding):
            return ()
        goes_on = tuple(len(r.output_ids) + 1 < r.max_new and not r.n_store for r in decoding)
        has_room = len(self.running) < self.n_slots or not all(goes_on)
        return () if self.waiting and has_room else goes_on

    def ran(self, batch: Batch, seconds: float = 0.0) -> None:
        """Note that the batch's tokens are in the cache, and how long that took."""
        if batch.phase is Phase.DECODE:
            self.pace.note_decode(seconds)
        else:
            self.pace.note_prefill(sum(len(row.ids) for row in batch.rows), seconds)
        for row in batch.rows:
            request = row.request
            request.n_past = row.start + len(row.ids)
            if row.start < len(request.ids):
                self.cache.hold(row.slot, request.ids[: request.n_past])
                if 0 < request.n_store <= request.n_past:
                    self.cache.store(row.slot, request.ids[: request.n_store])
                    request.n_store = 0

    def n_held(self, slot: int) -> int:
        """Tokens that a slot holds."""
        request = self.running.get(slot)
        return self.cache.n_held(slot) if request is None else request.n_past

    def release(self, request: Request, *, keep: bool = True) -> None:
        """Take a finished request out of its slot or of the queue."""
        self._following.pop(request, None)
        if request.slot is not None and self.running.get(request.slot) is request:
            del self.running[request.slot]
            if keep:
                self.cache.hold(request.slot, np.array(request.tokens(0, request.n_past), np.int32))
            else:
                self.cache.forget(request.slot)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.n_slots:
            request = self.waiting[0]  # and stays there until it has its slot, so that a fault finds it
            free = [s for s in range(self.n_slots) if s not in self.running]
            reuses = request.reader is None and request.reuses_prefix
            slot, n_cached, request.n_store = self.cache.place(request.ids, free, reuses=reuses)
            request.begin(slot, n_cached)
            if request.reader is None:
                self._follow(request, reuses and self.cache.is_on)
            self.waiting.popleft()
            self.running[slot] = request

    def _follow(self, request: Request, may_share: bool) -> None:
        """Let a request wait for one that evaluates the same beginning, or take that at once."""
        most = len(request.ids) - 1
        for other in self.running.values():
            is_kin = request.group is not None and other.group is request.group
            if other in self._following or not (is_kin or may_share and other.is_prefilling):
                continue
            n = min(n_common(request.ids, other.ids), most)
            gain = n - request.n_past
            if gain >= (1 if is_kin else self.cache.min_shared):
                self._following[request] = other, n
                return

    def _catch_up(self) -> None:
        """Give those that waited for another's prompt what is there by now."""
        for request, (other, n) in list(self._following.items()):
            slot = other.slot
            assert slot is not None and request.slot is not None, "both were given slots"
            is_there = self.running.get(slot) is other
            if is_there and other.n_past < n and other.is_prefilling:
                continue
            del self._following[request]
            if is_there:
                request.n_past = request.n_cached = self.cache.take(request.slot, request.ids, slot)
