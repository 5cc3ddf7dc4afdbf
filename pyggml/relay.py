"""Steps of a graph that follow one another on cards: each takes the likeliest tokens of the one before.

Two banks of host arrays take turns, so that a step can be begun while the one before it runs or is read. The tokens
never wait for the host, which reads them all the same and may find that a step should not have been begun: what that
step left in a state must do no harm. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ._ffi import ffi, lib
from .cuda_module import cuda_api, why, words
from .errors import AllocationError, ClosedError, ComputeError, ShapeError
from .lifetime import Closable
from .pinned import pinned_arrays
from .transfer import Transfers

if TYPE_CHECKING:
    from .group import Group
    from .rank_graph import RankGraph

N_BANKS = 2


@dataclass
class Bank:
    """The host arrays of a step: what every rank is fed, and what each rank chose; and the step as C structs."""

    feeds: Mapping[str, np.ndarray]
    results: Sequence[np.ndarray]
    first_runs: Any = None  # the host has the tokens
    fed_runs: Any = None  # the step before has them
    is_fed: bool = False
    sent: list[Transfers] = field(default_factory=list)  # in and out of each rank's first run, then of its fed one

    @property
    def runs(self) -> Any:
        """The structs of the step that was begun last."""
        return self.fed_runs if self.is_fed else self.first_runs


class Relay(Closable):
    """Runs of the ranks' laid-out graphs, on cards, that feed each other.

    Every graph has an input `tokens`, int32 with a number for each row of the logits from which it chooses `choice`
    (RankGraph.choose) and no other output that each run reads. The logits of rank r begin at token first_ids[r].
    At most two steps are begun at a time, on different `banks`, and end in their order. Close it before the graphs.
    Raises ShapeError for graphs of another kind, AllocationError.
    """

    def __init__(
        self,
        graphs: Sequence[RankGraph],
        group: Group | None,
        *,
        tokens: str,
        choice: str,
        first_ids: Sequence[int],
    ) -> None:
        self._graphs, self._group = list(graphs), group
        self._layouts = [graph.check_fresh() for graph in self._graphs]
        for rank, graph in enumerate(self._graphs):
            rows, taken = graph.results.get(choice), graph.feeds.get(tokens)
            if rows is None or taken is None or taken.shape != rows.shape[:1] or not self._layouts[rank].reads(tokens):
                raise ShapeError(
                    f"rank {rank} has inputs {sorted(graph.feeds)} and outputs {sorted(graph.results)}; an input "
                    f"{tokens!r} that is read, with a number for each row of a choice {choice!r}, is needed"
                )
        self._begun: list[int] = []
        self._marks: list[Any] = []
        self._open(self._graphs[0].backend.lock)
        arrays = self._arrays(choice)
        self.banks: list[Bank] = []
        try:
            for number in range(N_BANKS):
                feeds = {name: arrays[f"{number} {name}"] for name in self._graphs[0].feeds}
                bank = Bank(feeds, [arrays[f"{number} {rank}"] for rank in range(len(self._graphs))])
                marks = [self._mark(graph) for graph in self._graphs]
                bank.first_runs = self._describe(bank, "", choice, marks, first_ids)
                bank.fed_runs = self._describe(bank, tokens, choice, marks, first_ids)
                self.banks.append(bank)
        except BaseException:
            self.close()
            raise

    def _arrays(self, choice: str) -> dict[str, np.ndarray]:
        shapes: dict[str, tuple[Sequence[int], Any]] = {}
        for bank in range(N_BANKS):
            shapes |= {f"{bank} {name}": (feed.shape, feed.dtype) for name, feed in self._graphs[0].feeds.items()}
            for rank, graph in enumerate(self._graphs):
                shapes[f"{bank} {rank}"] = graph.results[choice].shape, np.int32
        return pinned_arrays(self._graphs[0].backend, shapes)

    @property
    def _api(self) -> Any:
        api = cuda_api()
        assert api is not None, "what chooses tokens on a card has the CUDA module"
        return api

    def _mark(self, graph: RankGraph) -> Any:
        reason = why()
        mark = self._api.mark_new(graph.backend.handle, reason, len(reason))
        if mark == ffi.NULL:
            raise AllocationError(f"{graph.backend.device.name}: no mark behind a step: {words(reason)}")
        self._marks.append(mark)
        return mark

    def _describe(
        self, bank: Bank, fed: str, choice: str, marks: Sequence[Any], first_ids: Sequence[int]
    ) -> Any:
        """The C structs of a step on a bank whose input `fed`, if that is a name, comes from the step before."""
        runs = ffi.new("pg_run[]", len(self._layouts))
        feeds = {name: feed for name, feed in bank.feeds.items() if name != fed}
        for rank, layout in enumerate(self._layouts):
            bank.sent += layout.describe(runs[rank], feeds, {choice: bank.results[rank]})
            runs[rank].fed = layout.input(fed) if fed else ffi.NULL
            runs[rank].first_id, runs[rank].mark = first_ids[rank], marks[rank]
        return runs

    @property
    def is_ready(self) -> bool:
        """Whether steps can follow one another now: all ranks' runs are recorded, and cards sum what ranks chose."""
        if self._group is not None and (self._group.closed or self._group.is_serial):
            return False
        return all(layout.can_feed for layout in self._layouts)

    def begin(self, bank: int, *, is_fed: bool = False) -> None:
        """Begin a step with the bank's feeds, or with the tokens of the step that was begun before it.

        The feeds may change again when the step has ended. Raises ComputeError, and ShapeError for a number in the
        feeds that is no row.
        """
        self.check_open()
        if not self._begun:
            for graph in self._graphs:
                graph.check_fresh()
        assert bank not in self._begun and (self._begun or not is_fed), "a bank holds one step; a first has tokens"
        chosen = self.banks[bank]
        at, value = chosen.sent[2 * len(self._layouts) if is_fed else 0].first_bad_row()
        if at >= 0:
            raise ShapeError(f"input number {at} of a step holds {value}, which is no row of what it reads")
        chosen.is_fed = is_fed
        if self._group is not None:
            with self._group.turn():
                self._group.post(self, chosen.runs, lib.pg_runs_begin)
                self._group.ahead.add(self)
        else:
            with self.lock:
                self._layouts[0].check(lib.pg_run_begin(chosen.runs))
        self._begun.append(bank)
        for graph in self._graphs:
            graph.note_in_flight(self)

    def finish(self) -> int:
        """Wait for the first of the steps begun, and give its bank. Raises ComputeError; a group is then closed."""
        bank = self._begun.pop(0)
        runs = self.banks[bank].runs
        try:
            if self._group is not None:
                self._finish_in(self._group, runs)
            else:
                with self.lock:
                    self._layouts[0].check(lib.pg_run_end(runs))
        finally:
            if not self._begun:
                for graph in self._graphs:
                    graph.note_in_flight(None)
        return bank

    def _finish_in(self, group: Group, runs: Any) -> None:
        with group.turn():
            if not self._begun:
                group.ahead.discard(self)
            group.post(self, runs, lib.pg_runs_end)
            for rank in range(group.n_ranks):
                lib.pg_group_wait(group.handle, rank, 0)
            if not self._begun:
                group.wait()  # and the turn is given back
            group.check(runs)

    def drop(self) -> Exception | None:
        """Wait for the steps begun, whatever came of them; the first fault of one, which may have closed the group."""
        fault: Exception | None = None
        while self._begun:
            try:
                self.finish()
            except (ComputeError, ClosedError) as error:
                fault = fault or error
        return fault

    def _release(self) -> None:
        if self._group is not None and self._group.closed:
            self._begun.clear()
        self.drop()
        while self._marks:
            self._api.mark_free(self._marks.pop())
