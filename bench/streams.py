#!/usr/bin/env python3
"""Many answers at once: tokens a second and time to the first token, of a server or of a model in this process.

usage: streams.py URL [--streams 1,4,16] [-p 64] [-n 64] [--rounds 3]
       streams.py --reference MODEL.gguf [--threads N] ...   starts llama.cpp's server for the time
       streams.py --in-process MODEL.gguf [--threads N] ...  through LLM, without HTTP

Each stream is one client of /v1/completions that reads its answer token by token; all of a round start together, with
prompts of their own that no cache has seen. Given several at once they take turns round by round, and the medians are
compared. On a machine that others use too, tokens a second of processor time say more: they are given where the process
that answers is known (with --pid for a URL). Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import aiohttp

sys.path.insert(0, str(Path(__file__).parent))

from compare_llama_cpp import reference_bin

WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room"
).split()


@dataclass
class Answer:
    """One stream: when its tokens came, in seconds since the round began."""

    n_tokens: int = 0
    first_s: float = 0.0
    end_s: float = 0.0
    longest_gap_s: float = 0.0


@dataclass
class Round:
    """All streams of one round."""

    answers: list[Answer]
    cpu_s: float = 0.0

    @property
    def tok_per_s(self) -> float:
        """Tokens generated a second by all streams, prompts included in the time."""
        return sum(a.n_tokens for a in self.answers) / max(a.end_s for a in self.answers)

    @property
    def tok_per_cpu_s(self) -> float:
        """Tokens generated a second of processor time; 0 where that is not known."""
        return sum(a.n_tokens for a in self.answers) / self.cpu_s if self.cpu_s else 0.0

    @property
    def ttft_s(self) -> float:
        """The mean time to the first token."""
        return statistics.mean(a.first_s for a in self.answers)


class Target(Protocol):
    """What answers."""

    name: str
    pids: Sequence[int]

    async def answer(self, prompt: str, n_tokens: int, started_s: float) -> Answer: ...


@dataclass
class Server:
    """A server of OpenAI's completions."""

    name: str
    url: str
    session: aiohttp.ClientSession
    model: str = "default"
    headers: dict[str, str] = field(default_factory=dict)
    pids: Sequence[int] = ()

    async def answer(self, prompt: str, n_tokens: int, started_s: float) -> Answer:
        """Read one streamed answer."""
        body = {
            "model": self.model, "prompt": prompt, "max_tokens": n_tokens, "stream": True, "temperature": 0.8,
            "top_k": 40, "seed": 1, "ignore_eos": True, "cache_prompt": False,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        answer, last_s = Answer(), 0.0
        async with self.session.post(
            f"{self.url}/v1/completions", json=body, headers=self.headers
        ) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                now = time.perf_counter() - started_s
                if usage := chunk.get("usage"):
                    answer.n_tokens = usage["completion_tokens"]
                elif answer.first_s == 0.0:
                    answer.first_s = now
                else:
                    answer.longest_gap_s = max(answer.longest_gap_s, now - last_s)
                last_s = now
        answer.end_s = last_s
        return answer


class InProcess:
    """An LLM of this process."""

    name = "in process"
    pids = (os.getpid(),)

    def __init__(self, path: str, n_slots: int, n_ctx: int, threads: int) -> None:
        from pyggml.engine import LLM

        self.llm = LLM(path, device="cpu", parallel=n_slots, ctx=n_ctx, threads=threads)

    async def answer(self, prompt: str, n_tokens: int, started_s: float) -> Answer:
        """Take the deltas as a server's worker would."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        answer, last_s = Answer(), 0.0

        def take(delta: Any) -> None:
            nonlocal last_s
            now = time.perf_counter() - started_s
            if answer.first_s == 0.0:
                answer.first_s = now
            else:
                answer.longest_gap_s = max(answer.longest_gap_s, now - last_s)
            last_s = answer.end_s = now
            if delta.finish_reason is not None:
                answer.n_tokens = delta.stats.n_generated
                loop.call_soon_threadsafe(done.set)

        params = self.llm.model.sampling(
            temperature=0.8, top_k=40, seed=1, ignore_eos=True, max_tokens=n_tokens
        )
        self.llm.submit(prompt, params, take, cache_prompt=False)
        await done.wait()
        return answer


@asynccontextmanager
async def reference(path: str, n_slots: int, n_ctx: int, threads: int) -> AsyncIterator[tuple[str, int]]:
    """llama.cpp's server on a free port, and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(reference_bin() / "llama-server"), "-m", path, "--port", str(port), "-np", str(n_slots),
        "-c", str(n_slots * n_ctx), "-t", str(threads), "-ngl", "0", "--no-webui",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        async with aiohttp.ClientSession() as session:
            for _ in range(600):
                await asyncio.sleep(0.1)
                try:
                    async with session.get(f"{url}/health") as response:
                        if response.status == 200:
                            break
                except aiohttp.ClientError:
                    if process.poll() is not None:
                        raise SystemExit("llama-server ended while it loaded") from None
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


def prompt_of(n_words: int) -> str:
    """A text that has not been sent before."""
    return " ".join(random.choices(WORDS, k=n_words))


def cpu_seconds(pids: Iterable[int]) -> float:
    """Processor time of processes so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def play(target: Target, n_streams: int, n_words: int, n_tokens: int) -> Round:
    """One round."""
    prompts = [prompt_of(n_words) for _ in range(n_streams)]
    cpu_s, started_s = cpu_seconds(target.pids), time.perf_counter()
    answers = await asyncio.gather(*(target.answer(p, n_tokens, started_s) for p in prompts))
    return Round(answers, cpu_seconds(target.pids) - cpu_s)


async def opened(args: argparse.Namespace, stack: AsyncExitStack, n_slots: int) -> list[Target]:
    """What is to be measured."""
    # llama-server may close a connection after an answer without saying so.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    session = await stack.enter_async_context(
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None), connector=connector)
    )
    key = os.environ.get("PYGGML_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    n_ctx = max(512, -(-2 * (args.p + args.n) // 256) * 256)
    targets: list[Target] = [Server(url, url, session, args.model, headers, args.pid) for url in args.urls]
    if args.reference:
        url, pid = await stack.enter_async_context(reference(args.reference, n_slots, n_ctx, args.threads))
        targets.append(Server("llama-server", url, session, pids=[pid]))
    if args.in_process:
        inside = InProcess(args.in_process, n_slots, n_ctx, args.threads)
        stack.callback(inside.llm.close)
        targets.append(inside)
    return targets


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All targets with all numbers of streams."""
    results: list[dict[str, Any]] = []
    counts = [int(n) for n in args.streams.split(",")]
    async with AsyncExitStack() as stack:
        targets = await opened(args, stack, max(counts))
        print(f"{'':24} {'streams':>7} {'tok/s':>8} {'tok/cpu s':>9} {'TTFT ms':>8} {'longest gap ms':>14}")
        for n_streams in counts:
            rounds: dict[str, list[Round]] = {target.name: [] for target in targets}
            for i in range(args.rounds + 1):
                for target in targets:
                    played = await play(target, n_streams, args.p, args.n)
                    if i:
                        rounds[target.name].append(played)
            for name, played_rounds in rounds.items():
                gap = statistics.median(max(a.longest_gap_s for a in r.answers) for r in played_rounds)
                result = {
                    "name": name,
                    "n_streams": n_streams,
                    "tok_per_s": statistics.median(r.tok_per_s for r in played_rounds),
                    "tok_per_cpu_s": statistics.median(r.tok_per_cpu_s for r in played_rounds),
                    "ttft_s": statistics.median(r.ttft_s for r in played_rounds),
                    "longest_gap_s": gap,
                }
                results.append(result)
                print(
                    f"{name:24.24} {n_streams:7} {result['tok_per_s']:8.1f} {result['tok_per_cpu_s']:9.1f} "
                    f"{1000 * result['ttft_s']:8.0f} "
                    f"{1000 * gap:14.0f}",
                    flush=True,
                )
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs="*", metavar="URL")
    parser.add_argument("--reference", metavar="MODEL")
    parser.add_argument("--in-process", metavar="MODEL")
    parser.add_argument("--pid", type=int, action="append", default=[], help="a process of the server at URL")
    parser.add_argument("--model", default="default", help="the model's name in requests")
    parser.add_argument("--streams", default="1,4,16")
    parser.add_argument("-p", type=int, default=64, help="words of a prompt")
    parser.add_argument("-n", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    results = asyncio.run(measure(args))
    print(
        json.dumps({"prompt_words": args.p, "max_tokens": args.n, "rounds": args.rounds, "results": results})
    )


if __name__ == "__main__":
    main()
