"""Steps of a graph that follow one another on cards: each takes the likeliest tokens of the one before.

Two banks of host arrays take turns, so that a step can be begun while the one before it runs or is read. The tokens
never wait for the host, which reads them all the same and may find that a step should not have been begun: what that
step left in a state must do no harm. One thread at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._ffi import ffi, lib
from .cuda_module import cuda_api, why, words
from .errors import AllocationError, ClosedError, ComputeError
from .pinned import pinned_arrays
from .transfer import Transfers

if TYPE_CHECKING:
    from .group import Group
    from .rank_graph import RankGraph

LOG = logging.getLogger("pyggml")
N_BANKS = 2


@dataclass
class Bank:
    """The host arrays of a step: what every rank is fed, and what each rank chose; and the step as C structs."""

    feeds: Mapping[str, np.ndarray]
    results: Sequence[np.ndarray]
    first_runs: Any  # the host has the tokens
    fed_runs: Any  # the step before has them
    is_fed: bool = False

    @property
    def runs(self) -> Any:
        """The structs of the step that was begun last."""
        return self.fed_runs if self.is_fed else self.first_runs


class Relay:
    """Runs of the ranks' laid-out graphs, on cards, that feed each other.

    Every graph has an input `tokens`, int32 with a number for each row of the logits from which it chooses `choice`
    (RankGraph.choose) and no other output that each run reads. The logits of rank r begin at token first_ids[r].
    At most two steps are begun at a time, on different `banks`, and end in their order.
    Raises AllocationError, ComputeError.
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
        self._begun: list[int] = []
        self._kept: list[Transfers] = []
        self._marks: list[Any] = []
        names = self._graphs[0].feeds
        try:
            arrays = self._arrays(choice)
            self.banks = []
            for bank in range(N_BANKS):
                feeds = {name: arrays[f"{bank} {name}"] for name in names}
                results = [arrays[f"{bank} {rank}"] for rank in range(len(self._graphs))]
                marks = [self._mark(graph) for graph in self._graphs]
                first_runs, fed_runs = (
                    self._describe(fed, feeds, [{choice: found} for found in results], tokens, marks, first_ids)
                    for fed in (False, True)
                )
                self.banks.append(Bank(feeds, results, first_runs, fed_runs))
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

    def _mark(self, graph: RankGraph) -> Any:
        reason = why()
        mark = self._api.mark_new(graph.backend.handle, reason, len(reason))
        if mark == ffi.NULL:
            raise AllocationError(f"{graph.backend.device.name}: no mark behind a step: {words(reason)}")
        self._marks.append(mark)
        return mark

    @property
    def _api(self) -> Any:
        api = cuda_api()
        assert api is not None, "what chooses tokens on a card has the CUDA module"
        return api

    def _describe(
        self,
        is_fed: bool,
        feeds: Mapping[str, np.ndarray],
        results: Sequence[Mapping[str, np.ndarray]],
        tokens: str,
        marks: Sequence[Any],
        first_ids: Sequence[int],
    ) -> Any:
        runs = ffi.new("pg_run[]", len(self._layouts))
        sent = {name: feed for name, feed in feeds.items() if name != tokens or not is_fed}
        for rank, layout in enumerate(self._layouts):
            self._kept += layout.describe(runs[rank], sent, results[rank])
            runs[rank].fed = layout.input(tokens) if is_fed else ffi.NULL
            runs[rank].first_id, runs[rank].mark = first_ids[rank], marks[rank]
        return runs

    @property
    def is_ready(self) -> bool:
        """Whether steps can follow one another now: all ranks' runs are recorded, and cards sum what ranks chose."""
        return not (self._group is not None and self._group.is_serial) and all(
            layout.can_feed for layout in self._layouts
        )

    def begin(self, bank: int, *, is_fed: bool = False) -> None:
        """Begin a step with the bank's feeds, or with the tokens of the step that was begun before it.

        The feeds may change again when the step has ended. Raises ComputeError.
        """
        if not self._begun:
            for graph in self._graphs:
                graph.check_fresh()
        assert bank not in self._begun and (self._begun or not is_fed), "a bank holds one step; a first has tokens"
        self.banks[bank].is_fed = is_fed
        runs = self.banks[bank].runs
        self._begun.append(bank)
        if self._group is not None:
            with self._group.turn():
                self._group.post(self, runs, lib.pg_runs_begin)
        else:
            with self._graphs[0].lock:
                lib.pg_run_begin(runs)
        for graph in self._graphs:
            graph.note_in_flight(self)

    def end(self) -> int:
        """Wait for the first of the steps begun, and give its bank. Raises ComputeError; a group is then closed."""
        bank = self._begun.pop(0)
        runs = self.banks[bank].runs
        try:
            if self._group is not None:
                self._end_of(self._group, runs)
            else:
                with self._graphs[0].lock:
                    lib.pg_run_end(runs)
                self._layouts[0].check(runs[0].status)
        finally:
            if not self._begun:
                for graph in self._graphs:
                    graph.note_in_flight(None)
        return bank

    def _end_of(self, group: Group, runs: Any) -> None:
        with group.turn():
            group.post(self, runs, lib.pg_runs_end)
            for rank in range(group.n_ranks):
                lib.pg_group_wait(group.handle, rank, 0)
            if not self._begun:
                group.wait()  # and the turn is given back
            group.check(runs)

    def drop(self) -> None:
        """Wait for the steps begun, whatever came of them: a fault of theirs stays for the next run to find."""
        while self._begun:
            try:
                self.end()
            except (ComputeError, ClosedError) as error:
                LOG.warning("a step that nobody waited for failed: %s", error)
                self._begun.clear()
                for graph in self._graphs:
                    graph.note_in_flight(None)

    def close(self) -> None:
        """Wait for the steps begun and free the marks; before the graphs are closed."""
        if self._group is not None and self._group.closed:
            self._begun.clear()
        self.drop()
        while self._marks:
            self._api.mark_free(self._marks.pop())
