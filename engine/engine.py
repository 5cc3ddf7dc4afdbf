"""The engine: requests in, tokens out, on one thread.

The thread owns scheduler, runner and every running request; other threads reach it through submit(), abort() and
call() only. A step that fails is done again request by request; those that fail alone, too, end with an error, and the
engine goes on. A fault that breaks the ranks ends all requests that have slots, and the ranks are built anew for those
that wait, at most 3 times in 5 minutes. Where that fails, or the engine itself, all requests end and new ones are
refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import numpy as np

from .batch import Batch, Row
from .engine_counts import EngineCounts
from .errors import DeviceLost, EngineError, GenerationError, QueueFull
from .logits import Logits
from .request import FinishReason, Request
from .sampler import Sampled, sample
from .scheduler import Scheduler

LOG = logging.getLogger("pyggml.engine")
# A fault that comes more often than this will not be cured by another attempt.
MAX_REBUILDS = 3
REBUILD_S = 300.0

T = TypeVar("T")


class BatchRunner(Protocol):
    """What the engine needs of a runner; tests give it a fake one."""

    def run(self, batch: Batch, meanwhile: Callable[[], None]) -> np.ndarray | Logits: ...

    def forget(self, slot: int) -> None: ...

    def settle(self) -> Exception | None: ...

    @property
    def came_early(self) -> bool: ...

    @property
    def is_ahead(self) -> bool: ...

    @property
    def is_broken(self) -> bool: ...

    def close(self) -> None: ...


class Engine:
    """Drives a scheduler and a runner on a thread of its own until close().

    The thread closes the runner at its end and then calls `dispose`, which frees what the runner used.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: BatchRunner,
        dispose: Callable[[], None] = lambda: None,
        rebuild: Callable[[], None] | None = None,
        *,
        max_queued: int | None = None,
    ) -> None:
        self._dispose, self._rebuild = dispose, rebuild
        self._rebuilt_s: deque[float] = deque(maxlen=MAX_REBUILDS)
        self.is_rebuilding = False
        self.n_rebuilds = 0
        self.last_fault: str | None = None
        self.max_queued = max_queued
        self.counts = EngineCounts()
        self.scheduler = scheduler
        self.runner = runner
        self._open: set[Request] = set()
        self._untold: list[tuple[Request, Sampled]] = []
        self._timed: set[Request] = set()
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._ended_s = 0.0  # of the last step
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="pyggml-engine", daemon=True)
        self._thread.start()

    @property
    def n_open(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._open)

    @property
    def fault(self) -> Exception | None:
        """What ended the engine, None if nothing did."""
        return self._fault

    @property
    def is_closing(self) -> bool:
        """Whether no request is taken any more."""
        return self._is_closing

    def submit(self, requests: Sequence[Request]) -> None:
        """Queue requests, all or none; their events come from the engine thread.

        Raises QueueFull where more than max_queued would wait.
        """
        with self._wake:
            self._check_running()
            if self.max_queued is not None:
                most = self.scheduler.n_slots + self.max_queued
                if len(self._open) + len(requests) > most:
                    raise QueueFull(
                        f"{len(self._open)} requests are running or queued, {len(requests)} more were sent and {most} "
                        f"may be ({self.scheduler.n_slots} slots, {self.max_queued} queued); try again later"
                    )
            for request in requests:
                request.on_finish = self._leave
            self._open.update(requests)
            self._inbox.append(lambda: self._take(requests))
            self._wake.notify()

    def abort(self, request: Request) -> None:
        """End a request early; it gets its terminal event unless it has had one."""
        self._post(lambda: request.finish(FinishReason.ABORT))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine thread between steps and return its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                self._settle()
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def _take(self, requests: Sequence[Request]) -> None:
        self._timed.update(request for request in requests if request.deadline_s is not None)
        for request in requests:
            if request.max_new == 0 and request.reader is None:
                request.finish(FinishReason.LENGTH)
            else:
                self.scheduler.add(request)

    def _post(self, message: Callable[[], None]) -> None:
        with self._wake:
            self._check_running()
            self._inbox.append(message)
            self._wake.notify()

    def _check_running(self) -> None:
        if isinstance(self._fault, DeviceLost):
            raise DeviceLost(f"the engine failed: {self._fault}")
        if self._is_closing:
            raise EngineError(f"the engine failed: {self._fault}" if self._fault else "the engine is closed")

    def _loop(self) -> None:
        try:
            self._serve()
        except Exception as error:
            with self._wake:
                self._is_closing, self._fault = True, error
        fault = GenerationError(f"the engine failed: {self._fault}") if self._fault else None
        try:
            self._tell()
            while self._inbox:  # what was posted since is answered too
                self._inbox.popleft()()
            for request in self.scheduler.requests():
                request.finish(FinishReason.ERROR if fault else FinishReason.ABORT, error=fault)
        finally:
            self.runner.close()
            self._dispose()

    def _serve(self) -> None:
        while True:
            if self.scheduler.is_idle:
                self._settle()
            with self._wake:
                while not self._inbox and not self._is_closing and self.scheduler.is_idle:
                    self._wake.wait()
                is_closing = self._is_closing
            if self._inbox:
                self._tell()  # before anything ends a request
            while self._inbox:
                self._inbox.popleft()()
            if is_closing:
                self._tell()
                return
            self._end_late()
            self.step()

    def _end_late(self) -> None:
        """End requests whose time is over, running or queued."""
        now = time.perf_counter() if self._timed else 0.0
        for request in list(self._timed):
            if now >= (request.deadline_s or 0.0):
                self._tell()
                request.finish(FinishReason.TIME)

    def step(self) -> None:
        """Schedule, run, choose the next tokens, send them."""
        batch = self.scheduler.go_on() if self.runner.is_ahead else None
        if batch is None:
            self._settle()
            batch = self.scheduler.schedule()
        if batch is None:
            self._tell()
        else:
            self._step(batch)

    def _settle(self) -> None:
        """Let no step be ahead; where one broke the ranks, they are built anew."""
        fault = self.runner.settle()
        if fault is not None and self.runner.is_broken:
            self._tell()
            self._begin_anew(fault)

    def _step(self, batch: Batch) -> None:
        has_run = False
        try:
            start = self._ended_s if self.runner.is_ahead else time.perf_counter()
            results = self.runner.run(batch, self._tell)
            has_run = True
            self._ended_s = time.perf_counter()
            self.scheduler.ran(batch, self._ended_s - start if self.runner.came_early else 0.0)
            results = self._read(batch, results)
            rows = [row for row in batch.rows if row.wants_logits]
            chosen = self._choose(rows, results)
        except Exception as error:
            self._tell()
            if len(batch.rows) > 1 and not has_run and not self.runner.is_broken:
                self._step_one_by_one(batch)
                return
            self._fail(batch, error)
            if self.runner.is_broken:
                self._begin_anew(error)
            return
        self.counts.add(batch)
        for row, sampled in zip(rows, chosen):
            self._form(row.request, row.request.take, sampled)

    def _step_one_by_one(self, batch: Batch) -> None:
        """Do a step that failed again for each of its requests, so that only those end that cannot do it alone."""
        for row in batch.rows:
            if not row.request.is_finished:
                self._step(Batch(batch.phase, (row,)))

    def _tell(self) -> None:
        """Send the texts of the tokens that were taken last, and prepare the choice of those that follow.

        The next step may be running.
        """
        untold, self._untold = self._untold, []
        for request, sampled in untold:
            self._form(request, request.tell, sampled)
            if request.sampler.constraint is not None:
                request.sampler.constraint.prepare()

    def _form(self, request: Request, part: Callable[[Sampled], bool | None], sampled: Sampled) -> None:
        """Do a part of forming a request's answer; what goes wrong there ends this request only."""
        if request.is_finished:  # while its step was running
            return
        try:
            if part(sampled):
                self._untold.append((request, sampled))
        except Exception as error:
            request.finish(FinishReason.ERROR, error=_failure(error))

    def _read(self, batch: Batch, results: np.ndarray | Logits) -> np.ndarray | Logits:
        """Hand the results of all its tokens to a prompt's reader; the rows to choose from are left."""
        row = batch.rows[0]
        if not row.is_read:
            return results
        results = results.rows() if isinstance(results, Logits) else results
        row.request.read(row.start, results)
        return results[-1:]

    def _choose(self, rows: Sequence[Row], logits: np.ndarray | Logits) -> list[Sampled]:
        if not rows:
            return []
        return sample(logits, [row.request.sampler for row in rows])

    def _fail(self, batch: Batch, error: Exception) -> None:
        for row in batch.rows:
            row.request.finish(FinishReason.ERROR, error=_failure(error))

    def _begin_anew(self, error: Exception) -> None:
        """Build the ranks again after a fault that broke them. Raises DeviceLost where that cannot be."""
        self.last_fault = str(error)
        LOG.error("the ranks failed and are built again: %s", error)
        for request in list(self.scheduler.running.values()):
            request.finish(FinishReason.ERROR, error=_failure(error))
        now = time.monotonic()
        if self._rebuild is None or (len(self._rebuilt_s) == MAX_REBUILDS and now - self._rebuilt_s[0] < REBUILD_S):
            raise DeviceLost(f"{error} (after {self.n_rebuilds} times that the ranks were built again)") from error
        self._rebuilt_s.append(now)
        self.is_rebuilding = True
        try:
            self._rebuild()
        except Exception as failure:
            raise DeviceLost(f"{error}; and the ranks could not be built again: {failure}") from failure
        finally:
            self.is_rebuilding = False
        self.scheduler.cache.forget_slots()
        self.n_rebuilds += 1

    def _leave(self, request: Request) -> None:
        """Free what a request had, before its last event is sent."""
        if request.has_failed and request.slot is not None:
            self.runner.forget(request.slot)  # what a failed step wrote there may not be finite
        self.scheduler.release(request, keep=not request.has_failed)
        self._open.discard(request)
        self._timed.discard(request)

    def close(self) -> None:
        """Abort what is running, end the thread, close the runner. Closing twice is allowed."""
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()


def _failure(error: Exception) -> EngineError:
    """What a request is told of an error that ended it."""
    if isinstance(error, EngineError):
        return error
    failure = GenerationError(f"a step failed: {error}")
    failure.__cause__ = error
    return failure
