"""One engine of the front: its state, requests in, answers out, over a process that may die.

When the process ends, every open request ends with an error and the state is broken, with the reason. Then the process
is started again, or `run` tells whoever keeps it that it is not. Event loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from .answer import Answer, error_of
from .engine_process import EngineProcess
from .errors import ApiError, BadRequest, ServerFault, StartError, Unavailable
from .messages import (
    Accepted,
    Broken,
    Cancel,
    Condition,
    Done,
    Failed,
    FromEngine,
    Generate,
    Load,
    Message,
    Piece,
    Progress,
    Ready,
    Status,
)
from .pulse import Pulse
from .restarts import Restarts

LOG = logging.getLogger("pyggml.server")

M = TypeVar("M", bound=Message)


class State(Enum):
    """How an engine is; one that is out is not started again."""

    LOADING = "loading"
    READY = "ready"
    BROKEN = "broken"
    OUT = "out"
    STOPPED = "stopped"


class EngineLink:
    """An engine of a server. `facts` are those of the loaded model, `reason` says why it is broken.

    `name` begins its lines in the log where it is one of several.
    """

    def __init__(
        self, load: Load, *, restarts: bool, on_ready: Callable[[dict[str, Any]], None], name: str = ""
    ) -> None:
        self._load = load
        self._restarts = Restarts(is_on=restarts, is_alone=not name)
        self._on_ready = on_ready
        self._name = name
        self._process: EngineProcess | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._was_ready = False
        self._idle = asyncio.Event()
        self._stopping = asyncio.Event()
        self._pulse = Pulse(lambda: self._asked(Status), lambda: bool(self._answers), self._end_hanging)
        self._hung = ""
        self.state = State.LOADING
        self.reason = ""
        self.progress = 0.0
        self.is_rebuilding = False
        self.facts: dict[str, Any] = {}
        self.last_piece_s = 0.0
        self.n_restarts = 0

    async def run(self) -> None:
        """Keep the engine running until `stop`.

        Raises StartError where it cannot start, or ended and is not to be started again.
        """
        while True:
            self._was_ready = False
            broken = await self._run_once()
            if self._stopping.is_set():
                self.state = State.STOPPED
                return
            if broken is not None and broken.is_mistake and not self.n_restarts:
                raise StartError(self._said(self.reason))
            is_final = broken is not None and broken.is_final
            pause_s = self._restarts.pause_s(was_ready=self._was_ready, is_final=is_final)
            if pause_s is None:
                self.state = State.OUT
                raise StartError(self._said(self.reason), status=1)
            LOG.error("%s; it is started again%s", self._said(self.reason), f" in {pause_s:g} s" if pause_s else "")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            if self._stopping.is_set():
                self.state = State.STOPPED
                return
            self.n_restarts += 1

    def _said(self, text: str) -> str:
        return f"{self._name}: {text}" if self._name else text

    async def _run_once(self) -> Broken | None:
        """One life of the process; what it said about its end."""
        broken: Broken | None = None
        self.state, self.progress, self.is_rebuilding, self._hung = State.LOADING, 0.0, False, ""
        try:
            process = self._process = await EngineProcess.start()
        except OSError as error:
            self.state, self.reason = State.BROKEN, f"the engine's process could not be started: {error}"
            return None
        process.send(self._load)
        if self._stopping.is_set():
            process.close(by_force=True)
        try:
            while (messages := await process.receive()) is not None:
                for message in messages:
                    if isinstance(message, Broken):
                        broken = message
                    self._take(message)
        finally:
            self._process = None
            self._pulse.end()
            self.state = State.STOPPED if self._stopping.is_set() else State.BROKEN
            self.reason = broken.reason if broken else self._hung or "the engine's process has ended"
            self._end_all()
            how = await process.ended()
            self.reason = broken.reason if broken else self._hung or how
        return broken

    def _end_hanging(self, how: str) -> None:
        self._hung = f"the engine {how} and was ended"
        if self._process is not None:
            self._process.close(by_force=True)

    def _take(self, message: FromEngine) -> None:
        match message:
            case Piece():
                self.last_piece_s = time.monotonic()
                if (answer := self._answers.get(message.id)) is not None:
                    answer.add(message)
            case Accepted():
                if (answer := self._answers.get(message.id)) is not None:
                    answer.accept(message.n_prompt)
            case Failed():
                if (answer := self._answers.get(message.id)) is not None:
                    answer.fail(error_of(message))
                self._settle(message.id, error_of(message))
            case Done():
                self._settle(message.id, message.value)
            case Ready():
                self.facts, self.state, self.reason, self._was_ready = message.facts, State.READY, "", True
                self._on_ready(message.facts)
            case Condition():
                self.is_rebuilding = message.is_rebuilding
            case Progress():
                self.progress = message.done_bytes / max(1, message.total_bytes)
            case Broken():
                pass

    def _settle(self, id: int, result: Any) -> None:
        future = self._calls.pop(id, None)
        if future is None or future.done():
            return
        if isinstance(result, ApiError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _end_all(self) -> None:
        error = ServerFault("the server stops" if self._stopping.is_set() else self.reason, code="engine_ended")
        for answer in list(self._answers.values()):
            answer.fail(error)
        for id in list(self._calls):
            self._settle(id, error)

    def _ready_process(self) -> EngineProcess:
        if self._process is None or self.state is not State.READY:
            raise self.unavailable()
        return self._process

    def unavailable(self) -> Unavailable:
        """Why no request can be taken now."""
        if self.state is State.LOADING:
            again = f" again; before, {self.reason}" if self.reason else ""
            return Unavailable(f"Loading model{again}", code="loading", retry_after_s=1)
        return Unavailable(self.reason or "the server stops", code="engine_unavailable", retry_after_s=5)

    def generate(self, asked: Generate) -> Answer:
        """Start an answer; `asked.id` is set here. Raises Unavailable, BadRequest."""
        process = self._ready_process()
        asked.id = next(self._ids)
        answer = Answer(asked.id, asked.n * max(1, len(asked.prompts)), self._left)
        _send(process, asked)
        self._answers[asked.id] = answer
        self._pulse.watch()
        return answer

    def _left(self, answer: Answer) -> None:
        if self._answers.pop(answer.id, None) is not None and not answer.is_over and self._process is not None:
            self._process.send(Cancel(answer.id))
        if not self._answers:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing is being answered."""
        while self._answers:
            self._idle.clear()
            await self._idle.wait()

    async def call(self, make: Callable[[int], Message]) -> Any:
        """Send what `make` gives for a new id and wait for the result. Raises ApiError."""
        self._ready_process()
        self._pulse.watch()
        return await self._asked(make)

    async def _asked(self, make: Callable[[int], Message]) -> Any:
        process = self._ready_process()
        id = next(self._ids)
        _send(process, make(id))
        future = self._calls[id] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            if self._calls.pop(id, None) is not None and self._process is not None:
                self._process.send(Cancel(id))

    @property
    def pid(self) -> int | None:
        """The number of the engine's process."""
        return None if self._process is None else self._process.pid

    @property
    def stuck(self) -> str:
        """Why it is taken to hang; empty where it is not."""
        return self._pulse.stuck

    @property
    def n_open(self) -> int:
        """Requests that are being answered."""
        return len(self._answers)

    @property
    def n_answers(self) -> int:
        """Answers that are being made; a request may have several."""
        return sum(answer.n_open for answer in self._answers.values()) + len(self._calls)

    @property
    def n_tokens_to_do(self) -> int:
        """What all of them have still to do, as `Answer.n_tokens_to_do`."""
        return sum(answer.n_tokens_to_do for answer in self._answers.values())

    def stop(self) -> None:
        """End the process; open requests end with an error."""
        self._stopping.set()
        if self._process is not None:
            self._process.close(by_force=self.state is State.LOADING)


def _send(process: EngineProcess, message: Message) -> None:
    """Send what a client has asked for. Raises BadRequest."""
    try:
        process.send(message)
    except OverflowError:
        raise BadRequest("a whole number in the request has more than 64 bits", code="invalid_value") from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
