"""The graphs of all ranks of a group, run together. Collectives whose ranks differ are refused before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._ffi import ffi, lib
from .errors import ComputeError, ShapeError
from .rank_graph import RankGraph, check_collectives

if TYPE_CHECKING:
    from .group import Group


class GroupGraph:
    """The graphs of all ranks, run together.

    `graphs[r].feeds` and `.results` are rank r's host arrays behind step(). Ranks that build nothing
    take no part.
    """

    def __init__(self, group: Group, graphs: Sequence[RankGraph]) -> None:
        self.group = group
        self.graphs = list(graphs)
        check_collectives(self.graphs)
        self._runs = ffi.new("pg_run[]", group.n_ranks)
        self._in_turns: list[Any] = []
        with group.turn():
            self._join()

    def _join(self) -> None:
        group = self.group
        largest = 1
        for rank, graph in enumerate(self.graphs):
            if not graph.n_nodes:
                continue
            graph.build()
            graph.join(group.handle, rank, self._runs[rank])
            sums = (-(-c.tensor.n_bytes // 4) for c in graph.collectives if c.op == lib.PG_ALL_REDUCE)
            largest = max(largest, *sums, 1)
        # Ranks meet once while they record, so that all must.
        on_cards = all(graph.n_nodes and graph.backend.device.module == "cuda" for graph in self.graphs)
        if on_cards and not group.is_serial:
            for graph in self.graphs:
                if not graph.is_alone:
                    graph.record()
        if not lib.pg_group_reserve(group.handle, largest):
            raise ComputeError(f"no host memory for sums of {largest} elements")

    def step(self) -> None:
        """Send every rank's feeds, run all ranks, fill their results.

        Raises ComputeError with the first fault; the group is then closed.
        """
        with self.group.turn():
            self.check_feeds()
            lib.pg_runs_finish(self.group.handle, self._runs)
            self.group.check(self._runs)

    def post(self) -> None:
        """Begin a step behind those already posted; finish() waits for all of them.

        The feeds must stay as they are until the step is done (see Group.wait). Other threads' runs wait for
        finish().
        """
        with self.group.turn():
            self.check_feeds()
            self.group.post(self, self._runs)

    def finish(self) -> None:
        """Wait for all posted steps of the group.

        Raises ComputeError with the first fault; the group is then closed.
        """
        with self.group.paused():
            in_turns, self._in_turns = self._in_turns, []
            for runs in (self._runs, *in_turns):
                self.group.check(runs)

    def beside(self, second: GroupGraph, sides: Sequence[Any]) -> Any:
        """The C structs of a run of this graph in turns with another, sums on these streams (see Turns)."""
        if [bool(a.plan) for a in self._runs] != [bool(b.plan) for b in second._runs]:
            raise ShapeError("graphs that take turns have parts for the same ranks; one of these lacks some")
        runs = ffi.new("pg_run[]", self.group.n_ranks)
        for rank, run in enumerate(runs):
            runs[rank] = self._runs[rank]
            run.status = 0
            run.second = second._runs + rank
            run.side = sides[rank] if sides else ffi.NULL
        return runs

    def note_in_turns(self, runs: Any) -> None:
        """Such a run was posted: finish() tells what came of it."""
        self._in_turns.append(runs)

    def check_feeds(self) -> None:
        """Raise what one rank would refuse, and what must then not begin on the others."""
        for graph in self.graphs:
            if graph.n_nodes:
                graph.check_feeds()

    def run(self, **inputs: Any) -> dict[str, np.ndarray]:
        """Set inputs on every rank (a list gives each rank its own), run, return copies of rank 0's outputs.

        Outputs that rank 0 does not have come from the first rank that has them.
        """
        with self.group.turn():
            return self._run(inputs)

    def _run(self, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
        for rank, graph in enumerate(self.graphs):
            mine = {n: v[rank] if isinstance(v, list) else v for n, v in inputs.items() if n in graph.feeds}
            graph.fill(mine)
        unknown = set(inputs) - {n for graph in self.graphs for n in graph.feeds}
        if unknown:
            raise ShapeError(f"no rank has an input {sorted(unknown)[0]!r}")
        self.step()
        outputs: dict[str, np.ndarray] = {}
        for rank in reversed(range(len(self.graphs))):
            outputs |= self.outputs(rank)
        return outputs

    def outputs(self, rank: int) -> dict[str, np.ndarray]:
        """Copies of one rank's outputs of the last run."""
        return self.graphs[rank].copy_results()

    def close(self) -> None:
        """Free all ranks' graphs, after the run in flight."""
        with self.group.paused():
            for graph in self.graphs:
                graph.close()

    def __enter__(self) -> GroupGraph:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
