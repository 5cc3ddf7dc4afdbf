#!/usr/bin/env python3
"""Many clients at a server for a while: no wrong answer, no leaked slot, flat memory, one end for every request.

usage: serve_load.py [--clients 64] [--seconds 180] [--parallel 8] [--seed 1] [--replicas 2 [--kills 2]]

Writes a model with one possible answer (tests/forced.py), serves it, and sends mixed requests: short and long prompts,
whole and streamed, chat and completions. One in 10 clients leaves midway, one in 20 requests is malformed. Prints a
line of figures every 10 s and a JSON line at the end; exits with 1 where something was wrong. With `--kills` so many
times a replica is killed: what it was answering must end with one error each, and nothing else may.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from forced import write_forced
from server_process import ServerProcess

ANSWER = "The quick brown fox jumps over a lazy dog, then 17 zebras vex my bold wizards & sphinx; Jock likes it. " * 2
PROMPT = "\x01\x02\x03\x04\x05\x06\x07\x08"
MALFORMED: tuple[bytes, ...] = (
    b"{", b"[]", b'{"messages": []}', b'{"messages": 5}', b'{"prompt": [[]]}', b'{"messages": [{"role": "x"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": 9}', b"\xff\xfe", b"[" * 50_000,
)  # fmt: skip


class Load:
    """The clients and what they saw."""

    def __init__(self, url: str, pieces: list[str], seed: int) -> None:
        self._url, self._pieces = url, pieces
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def client(self, session: aiohttp.ClientSession, until_s: float) -> None:
        """One client: request after request."""
        while time.monotonic() < until_s:
            try:
                await self._one(session)
            except (aiohttp.ClientError, asyncio.TimeoutError) as error:
                self._note(f"{type(error).__name__}: {error}")

    def _note(self, what: str) -> None:
        self.wrong.append(what)
        self.seen["wrong"] += 1

    async def _one(self, session: aiohttp.ClientSession) -> None:
        pick = self._random
        is_chat, is_stream = pick.random() < 0.5, pick.random() < 0.6
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        if pick.random() < 0.05:
            async with session.post(self._url + path, data=pick.choice(MALFORMED)) as response:
                body = await response.json()
                self.seen["malformed"] += 1
                if response.status != 400 or "error" not in body:
                    self._note(f"malformed: {response.status}")
            return
        text = "".join(pick.choice(PROMPT) for _ in range(pick.choice((1, 10, 100, 1000))))
        n = pick.choice((1, 8, 40, len(self._pieces) - 1))
        asked: dict[str, Any] = {"temperature": 0, "max_tokens": n, "stream": is_stream, "seed": 1}
        asked |= {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        leaves_after = pick.randrange(0, n + 1) if pick.random() < 0.1 else None
        await self._answer(session, path, asked, "".join(self._pieces[:n]), leaves_after)

    async def _answer(
        self, session: aiohttp.ClientSession, path: str, asked: dict[str, Any], right: str, leaves_after: int | None
    ) -> None:
        if leaves_after is not None and not asked["stream"]:
            try:
                await asyncio.wait_for(session.post(self._url + path, json=asked), self._random.random() * 0.3)
            except asyncio.TimeoutError:
                self.seen["left"] += 1
            return
        async with session.post(self._url + path, json=asked) as response:
            if response.status == 500 and (await response.json())["error"]["code"] == "engine_ended":
                self.seen["lost"] += 1
                return
            if response.status != 200:
                self._note(f"{response.status}: {(await response.text())[:200]}")
                return
            if not asked["stream"]:
                (choice,) = (await response.json())["choices"]
                self._check(choice.get("text") or (choice.get("message") or {}).get("content") or "", right, 1)
                return
            await self._stream(response, right, leaves_after)

    async def _stream(self, response: aiohttp.ClientResponse, right: str, leaves_after: int | None) -> None:
        text, n_ends, n_events, is_lost = "", 0, 0, False
        async for line in response.content:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            n_events += 1
            if leaves_after is not None and n_events > leaves_after:
                self.seen["left"] += 1
                response.close()
                return
            event = json.loads(line[6:])
            if is_lost:
                self._note(f"after an error: {event}")
            if "error" in event and event["error"]["code"] == "engine_ended":
                is_lost = True
                self.seen["lost"] += 1
                continue
            if "error" in event:
                self._note(f"event: {event}")
                return
            for choice in event["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                n_ends += choice["finish_reason"] is not None
        if is_lost:
            return
        self._check(text, right, n_ends)

    def _check(self, text: str, right: str, n_ends: int) -> None:
        self.seen["answers"] += 1
        if text != right or n_ends != 1:
            self._note(f"{n_ends} ends, {text[:60]!r} for {right[:60]!r}")


def rss_bytes(pid: int) -> int:
    """What a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def workers(server: ServerProcess) -> list[int]:
    """The processes of the engines that answer."""
    pid = server.process.pid
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def kill_some(server: ServerProcess, options: argparse.Namespace) -> None:
    """Kill a replica after another, each once all answer."""
    for number in range(options.kills):
        await asyncio.sleep(options.seconds / (options.kills + 1))
        replicas = (await asyncio.to_thread(server.get, "/status")).json["replicas"]
        if all(replica["state"] == "ready" for replica in replicas):
            os.kill(replicas[number % len(replicas)]["pid"], signal.SIGKILL)


async def run(server: ServerProcess, load: Load, options: argparse.Namespace) -> list[list[int]]:
    """All clients for the time; memory of the front and of the engines every 10 s."""
    end, memory = time.monotonic() + options.seconds, []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
        clients = [asyncio.ensure_future(load.client(session, end)) for _ in range(options.clients)]
        killing = asyncio.ensure_future(kill_some(server, options))
        while not all(client.done() for client in clients):
            await asyncio.wait(clients, timeout=10)
            memory.append([rss_bytes(p) for p in (server.process.pid, *workers(server))])
            print(dict(load.seen), [f"{n / 2**20:.0f} MiB" for n in memory[-1]], file=sys.stderr, flush=True)
        await asyncio.gather(killing, *clients)
    return memory


def main() -> int:
    """Serve, load, look at what is left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chain = write_forced(Path(folder) / "load.gguf", ANSWER, n_vocab=1024)
        pieces = [chain.vocab.text_of([id]).decode() for id in chain.ids]
        arguments = ("--ctx", 2048, "--parallel", options.parallel, "--threads", 1, "--log-format", "json")
        if options.replicas > 1:
            arguments += ("--dp", options.replicas, "--device", ",".join(["cpu"] * options.replicas))
        with ServerProcess(chain.path, *arguments) as server:
            load = Load(server.url, pieces, options.seed)
            memory = asyncio.run(run(server, load, options))
            time.sleep(5 if options.kills else 1)
            status = server.get("/status").json
            open_now = [status["n_open"], status["engine"]["n_open"], status["engine"]["n_running"]]
    middle = memory[len(memory) // 2]
    grown = [last - half for last, half in zip(memory[-1], middle)]
    is_right = not load.wrong and open_now == [0, 0, 0] and status["n_restarts"] == options.kills
    n_routed = [replica["n_routed"] for replica in status["replicas"]]
    report = {"clients": options.clients, "seconds": options.seconds, **load.seen, "open": open_now, "routed": n_routed}
    print(json.dumps(report | {"first_wrong": load.wrong[:5], "memory_bytes": memory[-1], "grown_bytes": grown}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
