"""The engine's process: opens the model, answers the front's messages, ends when the front does.

    python -m pyggml.server.worker FD

FD is its end of a socket pair. The event loop here reads messages, tokenizes in a thread and sends what the engine's
thread gives. Signals that a terminal or a supervisor sends to all processes are the front's to handle: this process
ends when the socket closes. Exit status: 0 the front closed, 1 the engine failed, 2 a mistake in the options.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
import threading

from pyggml.engine import LLM, ConfigError, ModelError

from .answering import Answering
from .facts import facts_of
from .messages import Broken, Load, Progress, Ready, frame, read_frame, to_engine
from .outbox import Outbox

PROGRESS_STEPS = 100
CLOSE_S = 3.0  # less than the front waits
MAX_FRAME_BYTES = 2**26


async def _open(load: Load, outbox: Outbox) -> LLM | None:
    """Load the model in a thread; None after telling the front why that cannot be."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if total and done * PROGRESS_STEPS // total > told:
            told = done * PROGRESS_STEPS // total
            outbox.put(Progress(done, total))

    try:
        return await asyncio.to_thread(LLM, load.model, progress=progress, **load.options)
    except Exception as error:  # whatever it was, the front must hear of it
        is_mistake = isinstance(error, (ConfigError, ModelError)) or type(error).__name__ in (
            "GGUFError", "DeviceError", "AllocationError", "PlanError", "TemplateError",
        )  # fmt: skip
        outbox.put(Broken(str(error) if is_mistake else f"{type(error).__name__}: {error}", is_mistake))
        outbox.flush()
        return None


def _stay_on(cpus: list[int]) -> None:
    """Let the threads of this process, and those that they will start, run on these processors only."""
    if cpus:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), cpus)


async def _serve(end: socket.socket) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=MAX_FRAME_BYTES)
    outbox = Outbox(lambda messages: writer.write(frame(messages)))
    found = await read_frame(reader)
    if found is None:
        return 0
    (load,) = to_engine.decode(found[1])
    assert isinstance(load, Load), "the first message opens the model"
    _stay_on(load.cpus)
    llm = await _open(load, outbox)
    if llm is None:
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        return 2
    gc.collect()
    gc.freeze()  # what loading made stays; collections look at requests only
    outbox.put(Ready(await asyncio.to_thread(facts_of, llm)))
    answering = Answering(llm, outbox)
    reading = asyncio.ensure_future(_read(reader, answering))
    fault = asyncio.ensure_future(answering.fault())
    await asyncio.wait([reading, fault], return_when=asyncio.FIRST_COMPLETED)
    if not fault.done():
        await reading
        outbox.close()
        await _close(llm)
        return 0
    outbox.put(fault.result())
    outbox.flush()
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return 1


async def _close(llm: LLM) -> None:
    """Let what is written to disk come to its end, but wait for no device that hangs."""

    def close() -> None:
        with contextlib.suppress(Exception):  # the process ends in any case
            llm.close()

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    await asyncio.to_thread(closing.join, CLOSE_S)


async def _read(reader: asyncio.StreamReader, answering: Answering) -> None:
    while (found := await read_frame(reader)) is not None:
        id, body = found
        try:
            messages = to_engine.decode(body)
        except Exception as error:  # nested too deeply here, if not there; only this request is concerned
            answering.failed(id, error)
            continue
        for message in messages:
            answering.take(message)


def main(arguments: list[str]) -> int:
    """Serve the socket until the other end closes it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # which the front has blocked until now
    with socket.socket(fileno=int(arguments[0])) as end:
        end.setblocking(False)
        return asyncio.run(_serve(end))


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # a device that hangs must not keep the process
