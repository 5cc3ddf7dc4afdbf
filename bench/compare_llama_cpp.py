#!/usr/bin/env python3
"""Prefill and decode of pyggml beside llama.cpp, built from the same source, in one run.

usage: compare_llama_cpp.py [MODEL ...] [-p 512] [-n 128] [--threads N] [--device NAME] [--rounds 3]

For each model the two take turns for some rounds after a warm-up of each; the medians are compared.
Prints ours, theirs, their ratio and the ceiling (bytes of weights over measured bandwidth), and ends
with one JSON line. Needs `build_ggml.py --reference`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from peer import reference_bin

from pyggml import default_threads
from pyggml.engine import Model
from pyggml.engine.ceiling import bandwidth


def theirs(path: Path, args: argparse.Namespace) -> dict[str, float]:
    """One round of llama-bench: tokens a second."""
    gpu_layers = "0" if args.device == "cpu" else "99"
    command = [
        str(reference_bin() / "llama-bench"), "-m", str(path), "-p", str(args.p), "-n", str(args.n), "-r", "1",
        "-t", str(args.threads), "-ngl", gpu_layers, "-o", "json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    return {"prefill" if row["n_prompt"] else "decode": row["avg_ts"] for row in rows}


def ours(path: Path, args: argparse.Namespace) -> dict[str, float]:
    """One round of pyggml bench: tokens a second, and Python's share of a decode step."""
    command = [
        sys.executable, "-m", "pyggml.engine.cli", "bench", str(path), "-p", str(args.p), "-n", str(args.n),
        "--repeat", "1", "--parallel", "1", "--threads", str(args.threads), "--device", args.device, "--json",
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return {
        "prefill": result["prefill"][0]["tok_per_s"],
        "decode": result["decode"][0]["tok_per_s"],
        "python_share": result["decode"][0]["python_share"],
    }


def compare(name: str, args: argparse.Namespace, n_read: float) -> dict[str, object]:
    """All rounds of one model, medians and ratios."""
    model = Model(name)
    path, n_bytes = Path(model.path), model.n_bytes
    model.close()
    rounds: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
    for i in range(args.rounds + 1):
        for who, measure in (("theirs", theirs), ("ours", ours)):
            figures = measure(path, args)
            if i > 0:
                rounds[who].append(figures)
            print(f"  {path.name} {who} {'warm-up' if i == 0 else f'round {i}'}: {figures}", file=sys.stderr)
    result: dict[str, object] = {"model": path.name, "bytes": n_bytes}
    for phase in ("prefill", "decode"):
        mine, other = (statistics.median(r[phase] for r in rounds[who]) for who in ("ours", "theirs"))
        result[phase] = {"ours": mine, "theirs": other, "ratio": mine / other}
    result["decode_ceiling"] = n_read / n_bytes
    result["python_share"] = statistics.median(r["python_share"] for r in rounds["ours"])
    return result


def main() -> None:
    """Run the comparison and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["smollm2", "gemma3"])
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    n_read = bandwidth("cpu", args.threads)
    results = [compare(name, args, n_read) for name in args.models or ["smollm2", "gemma3"]]
    print(f"tokens a second with {args.threads} threads on {args.device}")
    print(f"{'model':36} {'phase':8} {'ours':>9} {'llama.cpp':>9} {'ratio':>6} {'ceiling':>8}")
    for r in results:
        for phase in ("prefill", "decode"):
            f = r[phase]
            assert isinstance(f, dict)
            ceiling = f"{r['decode_ceiling']:8.0f}" if phase == "decode" else " " * 8
            print(
                f"{r['model']:36} {phase:8} {f['ours']:9.1f} {f['theirs']:9.1f} {f['ratio']:6.2f} {ceiling}"
            )
        print(f"{'':36} Python's share of a decode step: {100 * float(str(r['python_share'])):.1f} %")
    print(json.dumps({"bandwidth": n_read, "threads": args.threads, "results": results}))


if __name__ == "__main__":
    main()
