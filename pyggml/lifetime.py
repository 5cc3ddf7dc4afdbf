"""What backends, buffers, allocators and graphs share: being closed once, and who must hear of it.

Closing is explicit, by `with`, or by the last reference going: whoever uses an object holds a reference to it, so what
is collected is in nobody's use. An explicit close() waits for a run on its backend, also for one that a group began,
and tells the graphs that used the object, which then refuse to run. Nothing is freed while the interpreter ends, since
drivers may be gone by then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet, ref

from .errors import ClosedError

if TYPE_CHECKING:
    from .definition import Definition

Self = TypeVar("Self", bound="Closable")


class Runner(Protocol):
    """What runs on a backend without its lock, as a group does."""

    def paused(self) -> AbstractContextManager[None]:
        """Wait until nothing is in flight, and let nothing begin."""

    def try_pause(self) -> bool:
        """Begin such a pause if nothing is in flight and nobody has to be waited for; whether it began."""

    def resume(self) -> None:
        """End it."""


class Lock:
    """One backend's lock: held while its native code runs, and for freeing what that code may use.

    Objects that are collected while another thread holds it are freed by the next one to enter: a collection may happen
    in any thread, and one that waited here could wait for a run that waits for its own thread.
    The threads of a group hold no such lock: it says what is in flight, and nothing is freed meanwhile.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._left: list[Callable[[], None]] = []
        self._runner: Callable[[], Runner | None] = lambda: None

    def share(self, runner: Runner) -> None:
        """Let another object run on the backend too; it is not kept alive."""
        self._runner = ref(runner)

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._left:
            self._free_left()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold the lock with nothing in flight."""
        runner = self._runner()
        with runner.paused() if runner is not None else nullcontext(), self:
            yield

    def free(self, end: Callable[[], None]) -> None:
        """Call `end` now, or when the lock is next taken and nothing is in flight."""
        self._left.append(end)
        if self._lock.acquire(blocking=False):
            try:
                self._free_left()
            finally:
                self._lock.release()

    def _free_left(self) -> None:
        runner = self._runner()
        if runner is not None and not runner.try_pause():
            return
        try:
            while self._left:
                self._left.pop()()
        finally:
            if runner is not None:
                runner.resume()


class Closable:
    """An object with native memory behind it; subclasses say how it is released."""

    _is_open = False
    lock: Lock

    def _open(self, lock: Lock) -> None:
        """Begin the object's life; `lock` is its backend's."""
        self.lock = lock
        self.users: WeakSet[Definition] = WeakSet()
        self._is_open = True

    def _release(self) -> None:
        """Free the native memory; called once, and never while the backend runs."""
        raise AssertionError("each subclass releases its own memory")

    @property
    def description(self) -> str:
        """What the object is, for messages about its end."""
        return type(self).__name__.lower()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._is_open

    def check_open(self) -> None:
        """Raise ClosedError after the end."""
        if not self._is_open:
            raise ClosedError(f"this {self.description} is closed")

    def close(self) -> None:
        """Free the memory, after the run that may use it. Closing twice is allowed."""
        if self._is_open:
            with self.lock.quiet():
                self.end()

    def end(self) -> None:
        """Close without taking the lock, for an owner that has it."""
        if self._is_open:
            self._is_open = False
            for graph in list(self.users):
                graph.lose(self.description)
            self._release()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._is_open and not is_finalizing():
            self.lock.free(self.end)
