"""A group of ranks: one model or script over several devices, or several times over one.

Each rank has a backend, a graph of its own and a native thread; one call runs all of them at once
without the GIL. Collectives meet at a deadline, so nothing waits for ever: the first fault ends the
call with the original reason and closes the group. A device may be listed more than once. Any thread may
call: runs of one group take turns, close() waits for the run in flight, and only fail() does not wait.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ._ffi import ffi, lib
from .backend import Backend, default_threads
from .cuda_links import attach
from .device import Device
from .errors import ClosedError, ComputeError, DeviceError
from .group_graph import GroupGraph
from .rank_graph import RankGraph
from .reduce_type import check_reduce_dtype
from .transport import TransportReport, are_ranks_serial

__all__ = ["MAX_RANKS", "Group", "GroupGraph", "RankGraph"]

MAX_RANKS = 16
# Rank threads of cards look for the next step for so long before they sleep; longer than Python needs between two.
SPIN_S = 1e-3
# Groups with posted steps: their native jobs need them, also when nobody else does.
_POSTED: set[Group] = set()


class Group:
    """Ranks that run graphs together.

    `Group(["cuda:0", "cuda:1"])`, any mix of devices, 2 to 16 of them; `threads` is the number of CPU
    threads of each CPU rank (default: this process's processors dealt to the CPU ranks).
    `deadline_s` bounds the wait of one rank for another that has nothing to do or waits itself; one that
    computes is waited for. Between CUDA cards sums take the fastest
    transport that proved itself at the start; `transport` (or PYGGML_TRANSPORT) forces one of push, nccl,
    push-shm, nccl-shm and host. What was tried is in `transports`. Large sums travel as `reduce_dtype`, which is f32,
    bf16 or f16 (see reduce_type.py). Tests of links that take long count until the machine or its software
    changes; `retest` makes them anew.
    Raises DeviceError. Use it as a context manager or close() it; one that is dropped closes itself.
    """

    _handle: Any = None

    def __init__(
        self,
        devices: Sequence[str | Device],
        *,
        threads: int | None = None,
        transport: str | None = None,
        reduce_dtype: str = "f32",
        retest: bool = False,
        deadline_s: float = 60.0,
    ) -> None:
        if not 1 <= len(devices) <= MAX_RANKS:
            raise DeviceError(f"a group of {len(devices)} ranks; 1 to {MAX_RANKS} are supported")
        self.is_serial = are_ranks_serial()
        self.backends: list[Backend] = []
        self._turn = threading.Condition(threading.RLock())
        self._ending = threading.Lock()  # held for short looks at the handle, which may come during a run
        self._poster: threading.Thread | None = None
        self._posted: list[tuple[object, Any]] = []  # owners of runs, and the structs that the rank threads read
        self.ahead: set[object] = set()  # relays with steps begun, which the rank threads have done with
        n_cpu = sum(str(d).startswith("cpu") or getattr(d, "kind", "") == "cpu" for d in devices)
        share = threads or max(1, default_threads() // max(1, n_cpu))
        try:
            for device in devices:
                self.backends.append(Backend(device, threads=share))
            self.reduce_dtype = check_reduce_dtype(reduce_dtype, self.backends)
        except BaseException:
            self.close()
            raise
        for backend in self.backends:
            backend.lock.share(self)
        self._handle = lib.pg_group_new(len(devices), deadline_s)
        if all(backend.device.module == "cuda" for backend in self.backends):
            lib.pg_group_spin(self._handle, SPIN_S)
        lib.pg_group_serialise(self._handle, self.is_serial)
        self._threads = [
            threading.Thread(
                target=lib.pg_group_serve, args=(self._handle, r), name=f"pyggml-rank-{r}", daemon=True
            )
            for r in range(len(devices))
        ]
        for thread in self._threads:
            thread.start()
        try:
            self.transports: TransportReport = attach(
                self, transport=transport, wait_s=deadline_s, retest=retest
            )
        except BaseException:
            self.close()
            raise

    @property
    def n_ranks(self) -> int:
        """The number of ranks."""
        return len(self.backends)

    @property
    def handle(self) -> Any:
        """The C group; raises ClosedError after close() or a fault."""
        if self._handle is None:
            raise ClosedError("the group is closed")
        return self._handle

    @property
    def closed(self) -> bool:
        """Whether close() was called or a fault closed the group."""
        return self._handle is None

    def n_reduces(self, rank: int = 0) -> int:
        """All-reduces that a rank has taken part in."""
        with self._ending:
            return int(lib.pg_group_n_reduces(self.handle, rank))

    def reduce_s(self, rank: int = 0) -> float:
        """Seconds that a rank's thread spent in all-reduces; of those that a card does in its turn, their launches."""
        with self._ending:
            return float(lib.pg_group_reduce_s(self.handle, rank))

    def compile(self, function: Callable[[RankGraph, int], Any], *, max_nodes: int = 4096) -> GroupGraph:
        """Build each rank's graph by calling function(graph, rank), and lay them out.

        An error in any rank is raised as it is, after the graphs are freed.
        """
        graphs: list[RankGraph] = []
        try:
            for rank, backend in enumerate(self.backends):
                graphs.append(
                    RankGraph(
                        backend, rank, self.n_ranks, reduce_dtype=self.reduce_dtype, max_nodes=max_nodes
                    )
                )
                function(graphs[-1], rank)
            return GroupGraph(self, graphs)
        except BaseException:
            for graph in graphs:
                graph.close()
            raise

    @contextmanager
    def turn(self) -> Iterator[None]:
        """This thread's turn to run: no other has steps in flight, and close() waits."""
        with self._turn:
            me = threading.current_thread()
            while self._poster not in (None, me) and self._poster.is_alive():
                self._turn.wait(1.0)
            yield

    def post(self, owner: object, runs: Any, job: Callable[[Any, Any], None] = lib.pg_runs_post) -> None:
        """Queue each rank's part of a run, which `owner` describes; until wait() the turn stays with this thread."""
        handle = self.handle
        self._poster = threading.current_thread()
        if not any(runs is known for _, known in self._posted):
            self._posted.append((owner, runs))
        _POSTED.add(self)
        job(handle, runs)

    def check(self, runs: Any) -> None:
        """Raise ComputeError, and close the group, where a rank's part of a run that is over has failed."""
        if any(run.status for run in runs):
            reason = "it was closed" if self.closed else self.fault() or "a rank failed"
            self.close()
            raise ComputeError(f"the group's run failed: {reason}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is in flight and nothing begins, whoever posted it."""
        with self._turn:
            if self._handle is not None:
                self.wait()
                for backend in self.backends if self.ahead else ():
                    backend.synchronize()
            yield

    def try_pause(self) -> bool:
        """Pause if that needs no waiting; resume() ends it."""
        if not self._turn.acquire(blocking=False):
            return False
        if self._posted or self.ahead:
            self._turn.release()
            return False
        return True

    def resume(self) -> None:
        """End a pause that try_pause() began."""
        self._turn.release()

    def close(self) -> None:
        """End the rank threads and the backends, after the run in flight; graphs must be closed first.

        Closing twice is allowed.
        """
        with self.paused():
            self._end()

    def _end(self) -> None:
        with self._ending:
            handle, self._handle = self._handle, None
        if handle is not None:
            lib.pg_group_close(handle)
            for thread in self._threads:
                thread.join()
            lib.pg_group_free(handle)
        for backend in self.backends:
            backend.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._handle is not None and not is_finalizing():
            self._end()

    def wait(self, n_left: int = 0) -> None:
        """Wait until each rank has at most n_left posted steps to do; with none left other threads may run."""
        with self._turn:
            for rank in range(self.n_ranks):
                lib.pg_group_wait(self.handle, rank, n_left)
            if not n_left:
                self._poster = None
                self._posted.clear()
                _POSTED.discard(self)
                self._turn.notify_all()

    def fail(self, words: str, *, rank: int = -1) -> None:
        """Make every rank leave what it waits for; the run in flight ends with this reason."""
        with self._ending:
            lib.pg_group_fail(self.handle, lib.PG_FAULT_CLOSED, rank, words.encode())

    def fault(self) -> str | None:
        """What went wrong first, None if nothing did."""
        rank, text = ffi.new("int *"), ffi.new("char[512]")
        with self._ending:
            if not lib.pg_group_fault(self.handle, rank, text, 512):
                return None
        return f"rank {rank[0]}: {ffi.string(text).decode('utf-8', 'replace')}"

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
