"""Keys and their caps, other origins, TLS, the queue's end, slow clients, and what is logged."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forced import write_forced
from server_process import HANG_S, ServerProcess, stream_of

CHAT = "/v1/chat/completions"
ENDLESS = {"messages": [{"role": "user", "content": "QQ"}], "max_tokens": 100_000, "temperature": 0}
ALL_PATHS = [
    ("POST", CHAT), ("POST", "/v1/completions"), ("POST", "/v1/responses"), ("GET", "/v1/responses/x"),
    ("POST", "/v1/embeddings"), ("GET", "/v1/models"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("GET", "/metrics"), ("GET", "/status"), ("GET", "/openapi.json"), ("POST", "/chat/completions"),
    ("GET", "/nothing"),
]  # fmt: skip


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve") / "loop.gguf"
    return write_forced(path, "around and ", loops=True, n_ctx=65536).path


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def keyed(endless: Path) -> Iterator[ServerProcess]:
    """A server with two keys, for pages of one origin."""
    options = ("--api-key", "one", "--api-key", "two", "--cors", "https://a.example")
    with ServerProcess(endless, "--ctx", 512, "--threads", 1, *options) as server:
        yield server


@pytest.mark.parametrize(("method", "path"), ALL_PATHS)
def test_every_path_needs_a_key(keyed: ServerProcess, method: str, path: str) -> None:
    reply = keyed.request(method, path)
    assert reply.status == 401 and reply.json["error"]["code"] == "missing_api_key"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer one"}, 200),
        ({"Authorization": "bearer two"}, 200),
        ({"X_Api_Key": "two"}, 200),
        ({"Authorization": "Bearer three"}, 401),
        ({"Authorization": "Bearer on"}, 401),
        ({"Authorization": "Basic one"}, 401),
        ({"Authorization": "Bearer \u00e9"}, 401),
    ],
    ids=str,
)
def test_keys_are_told_apart(keyed: ServerProcess, headers: dict[str, str], status: int) -> None:
    assert keyed.get("/v1/models", **headers).status == status


def test_health_needs_no_key(keyed: ServerProcess) -> None:
    assert keyed.get("/health").status == 200


def test_a_key_is_never_logged(keyed: ServerProcess) -> None:
    keyed.get("/v1/models", Authorization="Bearer secret-word")
    assert not any("secret-word" in line for line in keyed.lines)


@pytest.mark.parametrize(("origin", "is_let_in"), [("https://a.example", True), ("https://b.example", False)])
def test_only_named_origins_may_read(keyed: ServerProcess, origin: str, is_let_in: bool) -> None:
    asked = {"Origin": origin, "Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x-a"}
    preflight = keyed.request("OPTIONS", CHAT, **asked)
    plain = keyed.get("/v1/models", Origin=origin, Authorization="Bearer one")
    assert (preflight.status == 204) is is_let_in
    for reply in (preflight, plain):
        assert (reply.headers.get("Access-Control-Allow-Origin") == origin) is is_let_in


def test_a_key_file_is_read_again_on_sighup(endless: Path, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text("# keys\nold name=first\n")
    with ServerProcess(endless, "--ctx", 512, "--threads", 1, "--api-key-file", file) as server:
        assert server.get("/v1/models", Authorization="Bearer old").status == 200
        file.write_text("new name=second\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("read again")
        assert server.get("/v1/models", Authorization="Bearer old").status == 401
        assert server.get("/v1/models", Authorization="Bearer new").status == 200
        file.write_text("new words=7\n")
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("words=7.*the keys stay")
        assert server.get("/v1/models", Authorization="Bearer new").status == 200


CAPPED = """
short name=short max_tokens=3
single name=single max_requests=1
rare name=rare requests_per_minute=2
frugal name=frugal tokens_per_minute=5
reader name=reader tokens_per_minute=5
brief name=brief max_seconds=1
"""


@pytest.fixture(scope="module")
def capped(endless: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text(CAPPED)
    with ServerProcess(endless, "--ctx", 65536, "--threads", 1, "--api-key-file", file) as server:
        yield server


def ask(server: ServerProcess, key: str, **fields: Any) -> Any:
    return server.post(CHAT, ENDLESS | fields, Authorization=f"Bearer {key}")


def test_a_key_caps_the_tokens_of_an_answer(capped: ServerProcess) -> None:
    assert ask(capped, "short").json["usage"]["completion_tokens"] == 3
    assert ask(capped, "short", max_tokens=2).json["usage"]["completion_tokens"] == 2


def test_a_key_caps_the_seconds_of_a_request(capped: ServerProcess) -> None:
    reply = ask(capped, "brief").json
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] < 65_000


def test_a_key_caps_requests_a_minute(capped: ServerProcess) -> None:
    replies = [ask(capped, "rare", max_tokens=1) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert 1 <= int(replies[-1].headers["Retry-After"]) <= 61
    assert ask(capped, "short").status == 200


def test_a_key_caps_tokens_a_minute(capped: ServerProcess) -> None:
    assert [ask(capped, "frugal", max_tokens=8).status for _ in range(2)] == [200, 429]


def test_texts_to_embed_count_as_tokens(capped: ServerProcess) -> None:
    body = {"input": "many more than five tokens"}
    statuses = [capped.post("/v1/embeddings", body, Authorization="Bearer reader").status for _ in range(2)]
    assert statuses == [200, 429]


def test_a_key_caps_requests_at_once(capped: ServerProcess) -> None:
    first = threading.Thread(target=ask, args=(capped, "single"), kwargs={"max_tokens": 2000})
    first.start()
    until(lambda: capped.get("/status", Authorization="Bearer short").json["n_open"] >= 1)
    assert ask(capped, "single", max_tokens=1).status == 429
    first.join(HANG_S)
    assert ask(capped, "single", max_tokens=1).status == 200


@pytest.fixture(scope="module")
def narrow(endless: Path) -> Iterator[ServerProcess]:
    """One slot, one place in the queue, short patience, JSON lines, a server's own cap."""
    options = (
        "--parallel", 1, "--max-queued", 1, "--idle-timeout", 1, "--read-timeout", 1, "--log-format", "json",
        "--max-tokens", 5000, "--temperature", 0, "--cors", "*",
    )  # fmt: skip
    with ServerProcess(endless, "--ctx", 65536, "--threads", 1, *options) as server:
        yield server


def test_a_full_queue_is_429_with_a_time_to_wait(narrow: ServerProcess) -> None:
    running = stream_of(narrow, CHAT, ENDLESS)
    next(running)
    waiting = threading.Thread(target=narrow.chat, kwargs={"max_tokens": 1})
    waiting.start()
    until(lambda: narrow.get("/status").json["n_open"] == 2)
    refused = narrow.chat(max_tokens=1)
    running.close()
    waiting.join(HANG_S)
    assert refused.status == 429 and refused.json["error"]["code"] == "queue_full"
    assert int(refused.headers["Retry-After"]) >= 1
    assert narrow.chat(max_tokens=1).status == 200


def test_the_servers_cap_fills_in_and_caps(narrow: ServerProcess) -> None:
    body = {"prompt": [7] * 8, "temperature": 0}
    for fields in ({}, {"max_tokens": 60_000}):
        assert narrow.post("/v1/completions", body | fields).json["usage"]["completion_tokens"] == 5000


def test_a_connection_without_a_whole_request_is_closed(narrow: ServerProcess) -> None:
    for sent in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nHost:"):
        with socket.create_connection(("127.0.0.1", narrow.port), HANG_S) as slow:
            slow.sendall(sent)
            assert slow.recv(100) == b""


def test_a_body_that_does_not_come_is_400(narrow: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", narrow.port), HANG_S) as slow:
        slow.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n".encode() + b"{")
        assert b" 400 " in slow.recv(1000).splitlines()[0]


def test_every_response_names_its_request(narrow: ServerProcess) -> None:
    assert narrow.get("/health", X_Request_Id="my-id.1").headers["X-Request-Id"] == "my-id.1"
    ids = {narrow.get("/health", X_Request_Id=bad).headers["X-Request-Id"] for bad in ("a b", "x" * 101, '"', "")}
    assert len(ids) == 4 and all(len(id) == 32 for id in ids)


def test_log_lines_are_json_without_prompts(narrow: ServerProcess) -> None:
    narrow.chat("very private words", max_tokens=2, user="also private")
    narrow.post(CHAT, b'{"messages": "private words that are wrong"}')
    narrow.wait_for("400")
    lines = [json.loads(line) for line in narrow.lines]
    assert not any("private" in line for line in narrow.lines)
    (last,) = [line for line in lines if line.get("n_generated") == 2][-1:]
    assert {"time", "level", "event", "request_id", "path", "status", "seconds", "n_prompt", "ttft_s"} <= set(last)
    assert last["path"] == CHAT and last["status"] == 200


def test_prompts_are_logged_where_that_was_asked_for(endless: Path) -> None:
    options = ("--ctx", 512, "--threads", 1, "--log-prompts", "--log-format", "json")
    with ServerProcess(endless, *options) as server:
        server.chat("public words", max_tokens=2)
        server.post("/v1/completions", {"prompt": "more public words", "max_tokens": 2, "stream": True})
        server.wait_for("more public")
        lines = [json.loads(line) for line in server.lines if "public" in line]
    assert [bool(line["asked"] and line["answered"]) for line in lines] == [True, True]


def test_any_origin_may_read_where_all_are_let_in(narrow: ServerProcess) -> None:
    assert narrow.get("/health", Origin="https://x.example").headers["Access-Control-Allow-Origin"] == "*"


def test_tls(endless: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    try:
        made = subprocess.run([*command, "-keyout", key, "-out", cert], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("openssl is not installed, so no certificate can be made")
    assert made.returncode == 0, made.stderr
    with ServerProcess(endless, "--ctx", 512, "--tls-cert", cert, "--tls-key", key) as server:
        assert server.scheme == "https"
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=HANG_S, context=context)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200
        connection.close()
