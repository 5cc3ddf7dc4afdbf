"""The engine: requests in, tokens out, on one thread.

The thread owns scheduler, runner and every running request; other threads reach it through
submit(), abort() and call() only. A step that fails ends its batch's requests with an error and the
engine goes on; a fault of the engine itself ends all of them and refuses new ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import numpy as np

from .batch import Batch
from .errors import EngineError, GenerationError
from .request import FinishReason, Request, RequestState
from .sampler import sample
from .scheduler import Scheduler

T = TypeVar("T")


class BatchRunner(Protocol):
    """What the engine needs of a runner; tests give it a fake one."""

    def run(self, batch: Batch) -> np.ndarray: ...

    def forget(self, slot: int) -> None: ...

    @property
    def is_broken(self) -> bool: ...

    def close(self) -> None: ...


class Engine:
    """Drives a scheduler and a runner on a thread of its own until close().

    The thread closes the runner at its end and then calls `dispose`, which frees what the runner used.
    """

    def __init__(
        self, scheduler: Scheduler, runner: BatchRunner, dispose: Callable[[], None] = lambda: None
    ) -> None:
        self._dispose = dispose
        self.scheduler = scheduler
        self.runner = runner
        self.n_steps = 0
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._fault: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="pyggml-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue a request; its events come from the engine thread."""
        self._post(lambda: self._take(request))

    def abort(self, request: Request) -> None:
        """End a request early; it gets its terminal event unless it has had one."""
        self._post(lambda: self._end(request, FinishReason.ABORT))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine thread between steps and return its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._post(run)
        return future.result()

    def _take(self, request: Request) -> None:
        if request.max_new == 0:
            request.finish(FinishReason.LENGTH)
        else:
            self.scheduler.add(request)

    def _post(self, message: Callable[[], None]) -> None:
        with self._wake:
            if self._is_closing:
                raise EngineError(
                    f"the engine failed: {self._fault}" if self._fault else "the engine is closed"
                )
            self._inbox.append(message)
            self._wake.notify()

    def _loop(self) -> None:
        try:
            self._serve()
        except Exception as error:
            with self._wake:
                self._is_closing, self._fault = True, error
        fault = GenerationError(f"the engine failed: {self._fault}") if self._fault else None
        try:
            while self._inbox:  # what was posted since is answered too
                self._inbox.popleft()()
            for request in self.scheduler.requests():
                self.scheduler.release(request)
                request.finish(FinishReason.ERROR if fault else FinishReason.ABORT, error=fault)
        finally:
            self.runner.close()
            self._dispose()

    def _serve(self) -> None:
        while True:
            with self._wake:
                while not self._inbox and not self._is_closing and self.scheduler.is_idle:
                    self._wake.wait()
                is_closing = self._is_closing
            while self._inbox:
                self._inbox.popleft()()
            if is_closing:
                return
            self.step()

    def step(self) -> None:
        """Schedule, run, choose the next tokens, send them."""
        batch = self.scheduler.schedule()
        if batch is None:
            return
        try:
            logits = self.runner.run(batch)
            self.scheduler.ran(batch)
            rows = [row for row in batch.rows if row.wants_logits]
            chosen = sample(logits, [row.request.sampler for row in rows])
        except Exception as error:
            self._fail(batch, error)
            if self.runner.is_broken:
                raise
            return
        self.n_steps += 1
        for row, sampled in zip(rows, chosen):
            row.request.accept(sampled)
            if row.request.state is RequestState.FINISHED:
                self._leave(row.request, keep=sampled.error is None)

    def _fail(self, batch: Batch, error: Exception) -> None:
        for row in batch.rows:
            failure = error if isinstance(error, EngineError) else GenerationError(f"a step failed: {error}")
            failure.__cause__ = error if failure is not error else None
            self._end(row.request, FinishReason.ERROR, failure, keep=False)

    def _leave(self, request: Request, *, keep: bool) -> None:
        if not keep and request.slot is not None:
            self.runner.forget(request.slot)  # what a failed step wrote there may not be finite
        self.scheduler.release(request, keep=keep)

    def _end(
        self, request: Request, reason: FinishReason, error: Exception | None = None, keep: bool = True
    ) -> None:
        self._leave(request, keep=keep)
        request.finish(reason, error=error)

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
