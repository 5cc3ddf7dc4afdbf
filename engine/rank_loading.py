"""Ranks loaded side by side, a thread a device, with one progress told to the thread that waits for them.

Ranks that share a card follow one another, since they share its link. The first fault stops the others at their next
tensor, what they hold is freed, and the fault is raised as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from .rank import Rank
from .weights import Progress


@dataclass(frozen=True)
class RankLoad:
    """How one rank is loaded: `load(progress)` makes it. Loads with one `lane` follow one another."""

    lane: str
    n_bytes: int
    load: Callable[[Progress], Rank]


class _Stopped(Exception):
    """Ends a load for another one's fault."""


def load_ranks(loads: Sequence[RankLoad], progress: Progress | None = None) -> list[Rank]:
    """Load all ranks; `progress` is called in this thread, with the bytes of all of them."""
    return _Loading(loads, progress or (lambda done, total: None)).run()


class _Loading:
    def __init__(self, loads: Sequence[RankLoad], progress: Progress) -> None:
        self._loads = loads
        self._progress = progress
        self._total = sum(load.n_bytes for load in loads)
        self._changed = threading.Condition()
        self._done = [0] * len(loads)
        self._ranks: dict[int, Rank] = {}
        self._fault: BaseException | None = None
        lanes: dict[str, list[int]] = {}
        for i, load in enumerate(loads):
            lanes.setdefault(load.lane, []).append(i)
        self._threads = [
            threading.Thread(target=self._work, args=(members,), name=f"pyggml-load-{members[0]}")
            for members in lanes.values()
        ]
        self._n_working = len(self._threads)

    def run(self) -> list[Rank]:
        for thread in self._threads:
            thread.start()
        try:
            self._watch()
        except BaseException as error:  # Ctrl-C, or the caller's progress
            self._stop(error)
        for thread in self._threads:
            thread.join()
        if self._fault is not None:
            for rank in self._ranks.values():
                rank.close()
            raise self._fault
        return [self._ranks[i] for i in range(len(self._loads))]

    def _work(self, members: Sequence[int]) -> None:
        try:
            for i in members:
                self._ranks[i] = self._loads[i].load(partial(self._tell, i))
        except BaseException as error:
            self._stop(error)
        with self._changed:
            self._n_working -= 1
            self._changed.notify_all()

    def _tell(self, i: int, done: int, _: int) -> None:
        with self._changed:
            if self._fault is not None:
                raise _Stopped
            self._done[i] = done
            self._changed.notify_all()

    def _stop(self, fault: BaseException) -> None:
        with self._changed:
            if self._fault is None:
                self._fault = fault

    def _watch(self) -> None:
        told, is_working = -1, True
        while is_working:
            with self._changed:
                while sum(self._done) == told and self._n_working:
                    self._changed.wait()
                done, is_working = sum(self._done), self._n_working > 0
            if done != told and self._fault is None:
                self._progress(done, self._total)
            told = done
