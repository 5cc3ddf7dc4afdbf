"""Stored responses in a real Redis: shared, gone and back again, silent; no request ever fails for it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from forced import write_forced
from server_process import HANG_S, ServerProcess

pytest.importorskip("redis", reason="the redis library is not installed: pip install 'pyggml[redis]'")


class Redis:
    """A redis-server on a port of its own, which can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, with what it had stored before."""
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        self._process = subprocess.Popen([*command, "--appendonly", "yes"], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + HANG_S
        while time.monotonic() < deadline:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(16).startswith(b"+PONG"):
                        return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError("redis-server did not start")

    def keys(self) -> list[str]:
        """All keys that it has."""
        command = ["redis-cli", "-p", str(self.port), "--raw", "keys", "*"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(HANG_S)
            self._process = None


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed: apt install redis-server")
    server = Redis(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forced(tmp_path_factory.mktemp("serve") / "m.gguf", "Fine.").path


def serve(model: Path, url: str) -> ServerProcess:
    return ServerProcess(model, "--ctx", 512, "--threads", 1, "--parallel", 1, "--redis-url", url)


def make(server: ServerProcess, **fields: str) -> str:
    reply = server.post("/v1/responses", {"input": "WHY", "temperature": 0} | fields)
    assert reply.status == 200, reply.body
    id: str = reply.json["id"]
    return id


def has(server: ServerProcess, id: str) -> bool:
    return server.get(f"/v1/responses/{id}").status == 200


def test_what_one_server_made_another_has(model: Path, redis: Redis) -> None:
    with serve(model, redis.url) as a, serve(model, redis.url) as b:
        id = make(a)
        assert a.get(f"/v1/responses/{id}").json == b.get(f"/v1/responses/{id}").json
        assert has(a, make(b, previous_response_id=id))
        assert b.request("DELETE", f"/v1/responses/{id}").status == 200
        assert not has(b, id)


def test_a_restarted_server_has_what_was_made_before(model: Path, redis: Redis) -> None:
    with serve(model, redis.url) as before:
        id = make(before)
    with serve(model, redis.url) as after:
        assert has(after, id)


def test_redis_that_goes_costs_a_warning_and_no_request(model: Path, redis: Redis) -> None:
    with serve(model, redis.url) as server:
        first = make(server)
        redis.stop()
        second = make(server)
        server.wait_for("WARNING: Redis is away")
        assert has(server, first) and has(server, second)
        assert has(server, make(server, previous_response_id=second))
        redis.start()
        deadline = time.monotonic() + HANG_S
        while not any("Redis is back" in line for line in server.lines) and time.monotonic() < deadline:
            make(server)
            time.sleep(0.3)
        third = make(server)
        assert sum("Redis is away" in line for line in server.lines) == 1
    with serve(model, redis.url) as after:
        assert has(after, third) and has(after, first)


@pytest.mark.parametrize("listens", [False, True])
def test_redis_that_is_not_there_or_never_answers_adds_little(model: Path, listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        if not listens:
            silent.close()
        with serve(model, f"redis://127.0.0.1:{port}/0") as server:
            make(server)
            start = time.monotonic()
            ids = [make(server) for _ in range(3)]
            assert time.monotonic() - start < 10  # each within the rest after a failure
            assert all(has(server, id) for id in ids)


def test_a_url_that_is_none_is_refused(model: Path) -> None:
    with ServerProcess(model, "--redis-url", "nonsense", waits=False) as server:
        assert server.process.wait(HANG_S) == 2
        server.wait_for("--redis-url nonsense")


def test_only_responses_go_to_redis(model: Path, redis: Redis) -> None:
    """Keys and values of attention stay with the engine: there is no option for it, and none by accident."""
    with serve(model, redis.url) as server:
        for _ in range(2):
            asked = {"messages": [{"role": "user", "content": "WHY " * 60}], "max_tokens": 4, "temperature": 0}
            assert server.post("/v1/chat/completions", asked).status == 200
        assert redis.keys() == []
        id = make(server)
        found = redis.keys()
        assert found and all(id in key for key in found)
