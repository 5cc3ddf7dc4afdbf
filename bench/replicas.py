#!/usr/bin/env python3
"""Requests a second of two replicas on one processor or card each, beside one replica on one of them.

usage: replicas.py MODEL.gguf [--replicas 2 | --device cuda:0,cuda:1] [--slots 4] [-p 16] [-n 16] [--seconds 15] [...]

Both servers stay up and take turns; as many clients as all replicas have slots ask one request after another, each with
a prompt that no cache has seen. A round counts answers by their tokens, after three seconds of running in. On a machine
that others use too, time on the clock is shared with them: the second ratio goes by processor time, as if each replica
had its processor and the front's work were taken from them. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from streams import cpu_seconds, prompt_of

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from server_process import ServerProcess

RUNNING_IN_S = 3.0


@dataclass
class Round:
    """What came of one round: answers, the time on the clock, processor time of each worker and of the front."""

    n_answers: float
    seconds: float
    workers_s: Sequence[float]
    front_s: float


@dataclass
class Side:
    """One of the two servers, and its rounds."""

    name: str
    server: ServerProcess
    rounds: list[Round] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        """The processes of its engines."""
        return [row["pid"] for row in self.server.get("/status").json["replicas"]]

    @property
    def n_tokens(self) -> int:
        """Tokens generated so far."""
        n_tokens: int = self.server.get("/status").json["engine"]["n_generated_tokens"]
        return n_tokens

    @property
    def per_s(self) -> float:
        """Answers a second on the clock."""
        return statistics.median(r.n_answers / r.seconds for r in self.rounds)

    @property
    def per_processor_s(self) -> float:
        """Answers a second of the workers' processor time."""
        return statistics.median(r.n_answers / sum(r.workers_s) for r in self.rounds)

    @property
    def front_part(self) -> float:
        """The front's processor time as a part of the workers'."""
        return statistics.median(r.front_s / sum(r.workers_s) for r in self.rounds)

    @property
    def busy(self) -> list[float]:
        """The part of the time for which each worker had a processor."""
        return [statistics.median(r.workers_s[i] / r.seconds for r in self.rounds) for i in range(len(self.workers))]


async def play(side: Side, args: argparse.Namespace) -> Round:
    """One round."""
    n_clients = args.replicas * args.slots
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:

        async def client() -> None:
            while True:
                body = {
                    "prompt": prompt_of(args.p), "max_tokens": args.n, "temperature": 0.8, "seed": 1,
                    "ignore_eos": True, "cache_prompt": False,
                }  # fmt: skip
                async with session.post(f"{side.server.url}/v1/completions", json=body) as response:
                    response.raise_for_status()
                    await response.read()

        clients = [asyncio.ensure_future(client()) for _ in range(n_clients)]
        await asyncio.sleep(RUNNING_IN_S)
        pids = [*await asyncio.to_thread(lambda: side.workers), side.server.process.pid]
        n_before = await asyncio.to_thread(lambda: side.n_tokens)
        start_s, before = time.perf_counter(), [cpu_seconds([pid]) for pid in pids]
        await asyncio.wait(clients, timeout=args.seconds, return_when=asyncio.FIRST_EXCEPTION)
        *workers_s, front_s = [cpu_seconds([pid]) - was for pid, was in zip(pids, before)]
        seconds = time.perf_counter() - start_s
        n_tokens = await asyncio.to_thread(lambda: side.n_tokens) - n_before
        found = Round(n_tokens / args.n, seconds, workers_s, front_s)
        for task in clients:
            task.cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, asyncio.CancelledError):
                raise result
    await asyncio.sleep(0.5)  # what was left has been cancelled
    return found


def pin(worker: int) -> None:
    """Leave a process one processor."""
    processor = min(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{worker}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {processor})


def measured(args: argparse.Namespace, one: ServerProcess, several: ServerProcess) -> list[Side]:
    """Both sides, in turns."""
    sides = [Side("1 replica", one), Side(f"{args.replicas} replicas", several)]
    if not args.device:
        pin(*sides[0].workers)
    for number in range(args.rounds):
        for side in sides:
            played = asyncio.run(play(side, args))
            side.rounds.append(played)
            print(
                f"round {number} {side.name:10} {played.n_answers / played.seconds:7.2f} answers/s "
                f"{played.n_answers / sum(played.workers_s):7.2f} per processor second",
                file=sys.stderr,
                flush=True,
            )
    return sides


def main() -> None:
    """Serve twice, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--slots", type=int, default=4, help="of each replica")
    parser.add_argument("-p", type=int, default=16, help="words of a prompt")
    parser.add_argument("-n", type=int, default=16, help="tokens of an answer")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", help="cards, one a replica, with commas; else each has a processor")
    args = parser.parse_args()
    devices = args.device.split(",") if args.device else ["cpu"] * args.replicas
    args.replicas = len(devices)
    common: list[Any] = ["--parallel", args.slots, "--ctx", 2 * (args.p + args.n) + 64]
    common += [] if args.device else ["--threads", 1]
    together = ["--dp", args.replicas, "--device", ",".join(devices), *([] if args.device else ["--pin"])]
    with (
        ServerProcess(args.model, "--device", devices[0], *common) as one,
        ServerProcess(args.model, *together, *common) as several,
    ):
        sides = measured(args, one, several)
        rows = [
            {
                "name": side.name, "per_s": side.per_s, "per_processor_s": side.per_processor_s,
                "front_part": side.front_part, "busy": side.busy,
            }
            for side in sides
        ]  # fmt: skip
    alone, all_of_them = sides
    on_clock = all_of_them.per_s / alone.per_s
    # Of each processor the front takes its part; alone it has one to itself.
    by_processor = args.replicas * all_of_them.per_processor_s / (1 + all_of_them.front_part) / alone.per_processor_s
    for row in rows:
        busy = ", ".join(f"{100 * part:.0f} %" for part in row["busy"])
        print(
            f"{row['name']:12} {row['per_s']:7.2f} answers/s  {row['per_processor_s']:7.2f} per processor second  "
            f"workers busy {busy}  front {100 * row['front_part']:.1f} % of them"
        )
    print(f"{on_clock:.2f} x on the clock, {by_processor:.2f} x by processor time")
    print(json.dumps({"sides": rows, "ratio": on_clock, "ratio_by_processor": by_processor}))


if __name__ == "__main__":
    main()
