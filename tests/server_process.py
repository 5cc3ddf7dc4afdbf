"""A `pyggml serve` of its own process, on a free port, and plain requests to it."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HANG_S = 60.0
LISTENING = re.compile(r"listening on (https?)://([^:/]+):(\d+)")


class Reply(NamedTuple):
    """A response that was read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as strict JSON: no NaN, no Infinity."""

        def refuse(name: str) -> None:
            raise ValueError(f"{name} is no JSON")

        return json.loads(self.body, parse_constant=refuse)

    @property
    def events(self) -> list[Any]:
        """The `data:` lines of a stream, each as JSON, without [DONE], which must be the last."""
        lines = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]", lines[-1]
        return [json.loads(line) for line in lines[:-1]]


class ServerProcess:
    """The command with its arguments; the start waits until it listens, unless `waits` is off."""

    def __init__(self, model: Path | str, *arguments: object, waits: bool = True, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyggml.engine.cli", "serve", str(model), "--port", "0", *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | environment,
        )
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0
        if waits:
            try:
                self.scheme, self.host, port = self.wait_for(LISTENING).groups()
            except BaseException:
                self.__exit__()
                raise
            self.port = int(port)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            self._fresh.put(line)
        self._fresh.put(None)

    def wait_for(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """The next line of standard error that matches."""
        deadline = time.monotonic() + HANG_S
        while True:
            try:
                line = self._fresh.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{pattern!r} did not come: {self.lines}") from None
            if line is None:
                raise AssertionError(f"the server ended before {pattern!r}: {self.lines}")
            if (match := re.search(pattern, line)) is not None:
                return match

    @property
    def url(self) -> str:
        """The address."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> http.client.HTTPConnection:
        """A connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request, with a value as JSON or with bytes as they are, and read the response."""
        connection = self.connect()
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, data, {"Content-Type": "application/json"} | given)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())  # type: ignore[arg-type]
        finally:
            connection.close()

    def post(self, path: str, body: Any, **headers: str) -> Reply:
        """Send a POST."""
        return self.request("POST", path, body, **headers)

    def get(self, path: str, **headers: str) -> Reply:
        """Send a GET."""
        return self.request("GET", path, **headers)

    def chat(self, text: str = "Say it.", **fields: Any) -> Reply:
        """Ask one thing, greedily."""
        messages = [{"role": "user", "content": text}]
        return self.post("/v1/chat/completions", {"messages": messages, "temperature": 0} | fields)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(HANG_S)
        finally:
            self.process.kill()

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.stop()
        self._reader.join(HANG_S)
        if self.process.stderr is not None:
            self.process.stderr.close()


def stream_of(server: ServerProcess, path: str, body: Any) -> Iterator[tuple[http.client.HTTPResponse, Any]]:
    """The events of a stream as they come, with the response they come from."""
    connection = server.connect()
    try:
        connection.request("POST", path, json.dumps(body | {"stream": True}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        for line in response:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                yield response, json.loads(line[6:])
    finally:
        connection.close()
