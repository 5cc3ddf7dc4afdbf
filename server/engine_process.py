"""The engine's process as the front sees it: started, spoken to over one socket pair, watched until it ends.

Knows bytes and exit statuses only; what the messages mean is for `engine_link`. Its standard error goes on to ours, and
the last lines are kept, since a library that ends the process says why there and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections import deque
from collections.abc import Sequence

from .messages import FromEngine, Message, frame, from_engine, read_frame

LAST_LINES = 2
STOP_GRACE_S = 5.0


class EngineProcess:
    """One run of the engine's process. Made by `start`."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._relay = asyncio.ensure_future(self._relay_errors())

    @classmethod
    async def start(cls) -> EngineProcess:
        """Start the process; it waits for the message that says which model to open."""
        ours, theirs = socket.socketpair()
        with theirs:
            # Ctrl-C comes to all processes of a terminal: the new one takes none until it can ignore it.
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "pyggml.server.worker", str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                )  # fmt: skip
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))
        ours.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Send a message; one that no longer arrives is told by `receive` ending.

        Raises OverflowError for a number of more than 64 bits.
        """
        data = frame([message], getattr(message, "id", 0))
        with contextlib.suppress(ConnectionError, RuntimeError):
            self._writer.write(data)

    def close(self, *, by_force: bool = False) -> None:
        """Close our end, on which the process ends; while it loads it does not listen, and takes force."""
        self._writer.close()
        if by_force and self._process.returncode is None:
            self._process.kill()

    async def receive(self) -> Sequence[FromEngine] | None:
        """The next messages; None when the process has ended or closed its end."""
        found = await read_frame(self._reader)
        return None if found is None else from_engine.decode(found[1])

    async def ended(self) -> str:
        """Wait for the end, by force where it takes too long; why it ended, for people."""
        self._writer.close()
        try:
            status = await asyncio.wait_for(self._process.wait(), STOP_GRACE_S)
        except asyncio.TimeoutError:
            self._process.kill()
            status = await self._process.wait()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._relay), 1)
        self._relay.cancel()
        how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
        said = "; ".join(self._last_lines)
        return f"the engine's process ended {how}" + (f": {said}" if said and status else "")

    async def _relay_errors(self) -> None:
        assert self._process.stderr is not None, "it was asked for"
        rest = b""
        while data := await self._process.stderr.read(2**16):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
            *lines, rest = (rest + data)[-(2**16) :].split(b"\n")
            self._last_lines.extend(line.decode(errors="replace")[:300] for line in lines if line[:1].strip())
