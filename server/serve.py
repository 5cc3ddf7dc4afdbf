"""Running a server: takes the port, starts the engines' processes, serves until a signal or the engines' end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from .api_keys import KeyRing
from .app import make_app
from .errors import StartError
from .front import Front
from .logs import log_to_stderr
from .messages import Load
from .options import ReplicaOptions, ServerOptions
from .port import bound_socket
from .redis_store import RedisStore
from .replicas import Replicas
from .response_store import MemoryStore, ResponseStore
from .start_lines import address, start_lines

LOG = logging.getLogger("pyggml.server")
SHUTDOWN_S = 2.0


def serve(model: str, replicas: Sequence[ReplicaOptions], options: ServerOptions) -> None:
    """Serve a model, once or several times, until SIGTERM or Ctrl-C.

    Raises StartError where the server cannot start or no engine is left.
    """
    log_to_stderr(options.log_format)
    asyncio.run(Server(model, replicas, options).run())


class Server:
    """One server from start to end."""

    def __init__(self, model: str, replicas: Sequence[ReplicaOptions], options: ServerOptions) -> None:
        self._options = options
        self._keys = KeyRing(options.api_keys, options.api_key_file)
        self._tls = _tls_context(options)
        self._socket = bound_socket(options.host, options.port)
        names = options.aliases or (Path(model).name.removesuffix(".gguf"),)
        loads = [Load(model, dict(replica.llm), list(replica.cpus)) for replica in replicas]
        self._link = Replicas(loads, restarts=options.on_fault == "restart", on_ready=self._tell_ready)
        self._store: ResponseStore = RedisStore(options.redis_url) if options.redis_url else MemoryStore()
        self._front = Front(options, self._link, self._keys, self._store, names)

    async def run(self) -> None:
        """Serve; raises StartError as serve() does."""
        loop = asyncio.get_running_loop()
        asked_to_stop = asyncio.Event()

        def ask_to_stop() -> None:
            if asked_to_stop.is_set():  # asked twice: answers get no more time
                self._link.stop()
            asked_to_stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._read_keys)
        runner = web.AppRunner(
            make_app(self._front), handler_cancellation=True, access_log=None,
            keepalive_timeout=self._options.idle_timeout_s, shutdown_timeout=SHUTDOWN_S,
        )  # fmt: skip
        await runner.setup()
        site = web.SockSite(runner, self._socket, ssl_context=self._tls)
        await site.start()
        engine = asyncio.ensure_future(self._link.run())
        stopping = asyncio.ensure_future(asked_to_stop.wait())
        try:
            await asyncio.wait([engine, stopping], return_when=asyncio.FIRST_COMPLETED)
            await site.stop()
            if not engine.done():
                await self._drain()
                self._link.stop()
            await engine
        finally:
            stopping.cancel()
            await runner.cleanup()
            await self._store.close()

    async def _drain(self) -> None:
        """Let running answers end, for as long as the grace time."""
        self._front.is_stopping = True
        LOG.info("stopping; %d requests are running", self._link.n_open)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._link.idle(), self._options.grace_s)  # a second signal ends them all

    def _read_keys(self) -> None:
        try:
            self._keys.read()
            LOG.info("the key file was read again")
        except StartError as error:
            LOG.error("%s; the keys stay as they were", error)

    def _tell_ready(self, facts: Mapping[str, Any]) -> None:
        where = address(self._socket, self._tls is not None)
        for line in start_lines(self._front.names, facts, self._options, where, n_replicas=len(self._link.all)):
            LOG.info("%s", line)


def _tls_context(options: ServerOptions) -> ssl.SSLContext | None:
    """The context of the TLS files. Raises StartError."""
    if options.tls_cert is None and options.tls_key is None:
        return None
    if options.tls_cert is None or options.tls_key is None:
        raise StartError("--tls-cert and --tls-key go together; give both")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise StartError(f"--tls-cert {options.tls_cert}, --tls-key {options.tls_key}: {error}") from error
    return context
