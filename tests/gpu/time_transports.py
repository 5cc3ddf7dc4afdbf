#!/usr/bin/env python3
"""Times every transport between this machine's CUDA cards, in captured graphs and launched one by one.

    python tests/gpu/time_transports.py [--ranks 2] [--sizes 4096,65536] [--transport push] [--json FILE]

Each transport is first proven right. NCCL without peers needs a process of its own, which this one starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

import pyggml as gg
from pyggml._ffi import ffi
from pyggml.cuda_links import CudaLinks, host_seconds
from pyggml.errors import PyggmlError
from pyggml.peers import prove_pairs

SIZES = "1024,4096,8192,16384,65536,262144,1048576,2097152,8388608"
N_REPEATS = {True: 64, False: 64}


def timed(links: CudaLinks, name: str, n_elements: int, is_captured: bool, n_runs: int = 5) -> float:
    """The best of several runs, in microseconds a sum."""
    seconds, reason, best = ffi.new("double *"), ffi.new("char[400]"), float("inf")
    for _ in range(n_runs):
        made, n = links._transports[name], N_REPEATS[is_captured]
        if not links._api.time(
            made, links.n_ranks, links._handles, n_elements, n, is_captured, 20.0, seconds, reason, 400
        ):
            raise SystemExit(f"{name}, {n_elements} elements: {ffi.string(reason).decode()}")
        best = min(best, seconds[0])
    return best * 1e6


def measure(cards: list[str], names: list[str], sizes: list[int]) -> list[dict[str, Any]]:
    """Rows of microseconds by transport, way and size."""
    rows: list[dict[str, Any]] = []
    with gg.Group(cards, transport="host") as group:  # opens no NCCL, whose settings a process has once
        links = CudaLinks(group.backends, lambda n: host_seconds(group, n), wait_s=20.0)
        if set(names) & {"push", "nccl"}:
            for proof in prove_pairs(links, 20.0):
                print(proof, flush=True)
        for name in names:
            try:
                if problem := links.obstacle(name):
                    raise gg.DeviceError(problem)
                links.open(name)
            except PyggmlError as error:
                print(f"{name}: {error}", flush=True)
                continue
            if name == "host":
                rows.append(
                    {"name": name, "way": "launched", **{str(n): 1e6 * host_seconds(group, n) for n in sizes}}
                )
                continue
            for is_captured in (True, False):
                times = {str(n): timed(links, name, n, is_captured) for n in sizes}
                rows.append({"name": name, "way": "captured" if is_captured else "launched", **times})
        links.close()
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=0, help="default: all cards")
    parser.add_argument("--sizes", default=SIZES, help="elements of float32")
    parser.add_argument(
        "--transport", action="append", help="default: push, push-shm, nccl, host, and nccl-shm in a child"
    )
    parser.add_argument("--no-others", action="store_true", help="start no child")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()
    cards = [d.name for d in gg.devices() if d.module == "cuda"]
    cards = cards[: args.ranks or len(cards)]
    sizes = [int(word) for word in args.sizes.split(",")]
    rows = measure(cards, args.transport or ["push", "push-shm", "nccl", "host"], sizes)
    print(f"microseconds a sum over {len(cards)} ranks, best of 5")
    print(f"{'transport':<10}{'way':<10}" + "".join(f"{n:>11,}" for n in sizes))
    for row in rows:
        print(
            f"{row['name']:<10}{row['way']:<10}" + "".join(f"{row[str(n)]:>11.2f}" for n in sizes), flush=True
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(rows, file, indent=1)
    if not args.transport and not args.no_others:
        command = [
            sys.executable,
            __file__,
            "--transport",
            "nccl-shm",
            "--sizes",
            args.sizes,
            "--ranks",
            str(len(cards)),
        ]
        return subprocess.run(command, check=False, timeout=200).returncode
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
