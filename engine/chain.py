"""Decode steps that are begun before the host has read those in front of them.

The card hands the likeliest tokens of one step to the next (pyggml.Relay), so that it never waits for the host. The
host reads each step as ever, and a step whose tokens turn out to be others than it took is not used. Owned by the
runner; engine thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import pyggml as gg

from .errors import EngineError
from .logits import Logits
from .plan import Place, Plan

STILL_BUSY_S = 50e-6  # a wait that long is for devices, not for the wait itself


class Chain:
    """Steps of one plan, of which at most two are in flight."""

    def __init__(self, plan: Plan, relay: gg.Relay) -> None:
        self.plan, self._relay = plan, relay
        self._parts = [[gg.chosen_candidates(found) for found in bank.results] for bank in relay.banks]
        self._bank = 0
        self._places: Sequence[Place] = ()  # of the step begun last; without ids where the card has them
        self._read: Logits | None = None  # of the step in front of it
        self._ended_s = time.perf_counter()

    def begin(self, places: Sequence[Place]) -> None:
        """Begin a first step."""
        self._fill(places)
        self._relay.begin(self._bank)

    def step(self, go_on: Sequence[int], meanwhile: Callable[[], None]) -> tuple[Logits, float, bool]:
        """Begin the step after the one begun last, of the slots that go on, if any, and end the one in front.

        What it chose, a row a slot of the plan; the seconds since the step before that were not the host's, and whether
        the host came before the step's end.
        """
        try:
            if go_on:
                self._bank = 1 - self._bank
                self._fill([Place(p.slot, p.start + 1, ()) for p in self._places if p.slot in go_on])
                self._relay.begin(self._bank, is_fed=True)
            meanwhile()
            start = time.perf_counter()
            found = self._parts[self._relay.finish()]
        except BaseException:
            self._relay.drop()
            raise
        end = time.perf_counter()
        is_early = end - start > STILL_BUSY_S
        native_s = end - (self._ended_s if is_early else start)
        self._ended_s = end
        self._read = Logits(_no_rows, found, self.plan.first_ids)
        return self._read, native_s, is_early

    def _fill(self, places: Sequence[Place]) -> None:
        self._places = places
        feeds = self._relay.banks[self._bank].feeds
        self.plan.lay_out(places, *(feeds[name][:, None] for name in ("tokens", "positions", "kv_rows")))

    def serves(self, places: Sequence[Place]) -> bool:
        """Whether the step begun last is what these tokens need: the card took the same ones to the same places."""
        likeliest = None if self._read is None else self._read.greedy()
        if likeliest is None:
            return False
        begun = {(p.slot, p.start) for p in self._places}
        slot0 = self.plan.slot0
        return all((p.slot, p.start) in begun and p.ids[0] == likeliest[p.slot - slot0] for p in places)

    def drop(self) -> Exception | None:
        """Wait for what is in flight, and use nothing of it; what went wrong there."""
        return self._relay.drop()


def _no_rows() -> NoReturn:
    raise EngineError("logits behind which another step was begun were asked for")
