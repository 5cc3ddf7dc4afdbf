"""Starting, faults and stopping: taken ports, missing files, a lost engine process, signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forced import write_forced
from server_process import HANG_S, Reply, ServerProcess, stream_of

CHAT = "/v1/chat/completions"
ENDLESS = {"messages": [{"role": "user", "content": "QQ"}], "max_tokens": 100_000, "temperature": 0}
OPTIONS = ("--ctx", 65536, "--parallel", 1, "--threads", 1)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends."""
    path = tmp_path_factory.mktemp("serve") / "loop.gguf"
    return write_forced(path, "around and ", loops=True, n_ctx=65536).path


def engine_pid(server: ServerProcess) -> int:
    """The engine's process."""
    (pid,) = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return int(pid)


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() != b""


def until(is_so: Any) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def is_up(server: ServerProcess) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return server.get("/health").status == 200
    return False


@contextlib.contextmanager
def two_requests(server: ServerProcess) -> Iterator[list[Reply]]:
    """One request that runs and one that waits for its slot; their replies are there at the end."""
    replies: list[Reply] = []

    def ask() -> None:
        replies.append(server.post(CHAT, ENDLESS))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: server.get("/status").json["n_open"] == 2)
    yield replies
    for thread in threads:
        thread.join(HANG_S)


def test_a_taken_port_is_refused_before_weights_are_read(endless: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServerProcess(endless, "--port", port, waits=False) as server:
            assert server.process.wait(HANG_S) == 2
            server.wait_for(f"port {port} .* is taken")
    assert not any("model" in line for line in server.lines)


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("missing.gguf", (), "missing.gguf"),
        (None, ("--tls-cert", "x"), "--tls-key"),
        (None, ("--tls-cert", "x", "--tls-key", "y"), "--tls-cert x"),
        (None, ("--api-key-file", "nothing.txt"), "nothing.txt"),
        (None, ("--ctx", 10**9), "--ctx"),
        (None, ("--tp", 2, "--layer-split", 2), "exclude each other"),
        (None, ("--host", "no.such.host.invalid"), "no.such.host.invalid"),
        (None, ("--grace", 0), "--grace"),
    ],
    ids=str,
)
def test_what_cannot_start_ends_with_2_and_one_line(
    endless: Path, model: str | None, arguments: tuple[Any, ...], said: str
) -> None:
    with ServerProcess(model or endless, *arguments, waits=False) as server:
        assert server.process.wait(HANG_S) == 2
        server.wait_for("pyggml serve: .*" + said.replace(".", r"\."))


def test_a_lost_engine_ends_requests_and_is_started_again(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        pid = engine_pid(server)
        with two_requests(server) as replies:
            os.kill(pid, signal.SIGKILL)
        assert [reply.status for reply in replies] == [500, 500]
        assert all("SIGKILL" in r.json["error"]["message"] or r.json["error"]["code"] for r in replies)
        until(lambda: is_up(server))
        assert server.chat(max_tokens=3).json["usage"]["completion_tokens"] == 3
        assert server.get("/status").json["n_restarts"] == 1
        assert engine_pid(server) != pid


def test_health_is_503_with_the_reason_until_the_engine_is_back(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        os.kill(engine_pid(server), signal.SIGKILL)
        until(lambda: server.get("/health").status == 503)
        seen = []
        while (reply := server.get("/health")).status == 503:
            seen.append(reply.json["error"]["message"])
        assert any("SIGKILL" in message for message in seen)
        assert is_up(server)


def test_a_lost_engine_ends_the_server_where_that_was_asked_for(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS, "--on-fault", "exit") as server:
        with two_requests(server) as replies:
            os.kill(engine_pid(server), signal.SIGKILL)
        assert [reply.status for reply in replies] == [500, 500]
        assert server.process.wait(10) == 1
        server.wait_for("SIGKILL")


def test_an_engine_that_dies_again_and_again_ends_the_server(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        for _ in range(3):
            os.kill(engine_pid(server), signal.SIGKILL)
            server.wait_for("listening")
        os.kill(engine_pid(server), signal.SIGKILL)
        assert server.process.wait(HANG_S) == 1


def test_a_stream_that_loses_its_engine_ends_with_an_error(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        stream = stream_of(server, CHAT, ENDLESS)
        next(stream)
        os.kill(engine_pid(server), signal.SIGKILL)
        *_, (_, last) = stream
        assert last["error"]["code"] == "engine_ended"


@pytest.mark.parametrize(
    ("path", "start", "told"),
    [
        ("/v1/messages", "event: error\ndata: ", {"type": "api_error", "message": "the engine's process has ended"}),
        ("/api/chat", "", "the engine's process has ended"),
    ],
)
def test_such_an_error_has_the_form_of_its_protocol(endless: Path, path: str, start: str, told: Any) -> None:
    with ServerProcess(endless, *OPTIONS) as server, contextlib.closing(server.connect()) as connection:
        connection.request("POST", path, json.dumps(ENDLESS | {"stream": True}))
        response = connection.getresponse()
        response.readline()
        os.kill(engine_pid(server), signal.SIGKILL)
        text = response.read().decode().rstrip("\n")
    assert start in text
    assert json.loads(text.rsplit(start or "\n", 1)[-1])["error"] == told


def test_the_engine_ends_when_the_front_is_killed(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        pid = engine_pid(server)
        server.process.kill()
        until(lambda: not is_there(pid))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_answers_end(endless: Path, how: signal.Signals) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        pid = engine_pid(server)
        stream = stream_of(server, CHAT, ENDLESS | {"max_tokens": 300})
        next(stream)
        server.process.send_signal(how)
        *_, (_, last) = stream
        assert last["choices"][0]["finish_reason"] == "length"
        assert server.process.wait(HANG_S) == 0
        until(lambda: not is_there(pid))


def test_a_stop_ends_what_takes_longer_than_the_grace_time(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS, "--grace", 0.3) as server:
        stream = stream_of(server, CHAT, ENDLESS)
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        *_, (_, last) = stream
        assert last["error"]["message"]
        assert server.process.wait(HANG_S) == 0


def test_a_second_signal_gives_no_more_time(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS, "--grace", 1000) as server:
        stream = stream_of(server, CHAT, ENDLESS)
        next(stream)
        server.process.send_signal(signal.SIGINT)
        server.wait_for("stopping")
        server.process.send_signal(signal.SIGINT)
        *_, (_, last) = stream
        assert last["error"]["message"]
        assert server.process.wait(HANG_S) == 0


def test_a_stop_while_loading_ends_at_once(endless: Path) -> None:
    with ServerProcess(endless, "--port", 0, waits=False) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        until(lambda: children.exists() and children.read_text().strip())
        time.sleep(0.2)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(HANG_S) == 0


def test_nothing_is_taken_while_stopping(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        kept = server.connect()
        kept.request("GET", "/health")
        kept.getresponse().read()
        stream = stream_of(server, CHAT, ENDLESS | {"max_tokens": 3000})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: _refuses(server))
        kept.request("POST", CHAT, json.dumps(ENDLESS))
        assert kept.getresponse().status == 503
        kept.close()
        stream.close()


def _refuses(server: ServerProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port), 1).close()
    except OSError:
        return True
    return False


def test_a_deep_health_check_decodes(endless: Path) -> None:
    with ServerProcess(endless, *OPTIONS) as server:
        assert server.get("/health?deep=1").json["status"] == "ok"
        assert server.get("/status").json["engine"]["n_generated_tokens"] >= 1
        os.kill(engine_pid(server), signal.SIGSTOP)
        try:
            assert server.get("/health").status == 200  # only the deep one can know
        finally:
            os.kill(engine_pid(server), signal.SIGCONT)


def test_an_idle_server_uses_no_processor(endless: Path) -> None:
    def ticks(pid: int) -> int:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    with ServerProcess(endless, *OPTIONS) as server:
        assert server.chat(max_tokens=5).status == 200
        time.sleep(0.5)
        pids = (server.process.pid, engine_pid(server))
        before = sum(map(ticks, pids))
        time.sleep(3)
        assert sum(map(ticks, pids)) - before <= 3  # hundredths of a second: 1 % of a core
