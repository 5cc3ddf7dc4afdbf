#!/usr/bin/env python3
"""Speed and sameness of one model over several devices: one device, tensor parallel, layer split.

usage: ranks.py MODEL.gguf --device cuda:0,cuda:1 [-p 512,4096] [-n 128] [--parallel 1,4,16]

The first tokens of a greedy answer of each mode are compared with those of one device. Prints a table
and ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from pyggml.engine import LLM, Model


def measure(name: str, args: argparse.Namespace, **options: Any) -> dict[str, Any]:
    """Prefill and decode speeds of one way to open the model."""
    lengths = [int(n) for n in args.p.split(",")]
    counts = [int(n) for n in args.parallel.split(",")]
    start = time.perf_counter()
    with LLM(name, ctx=max(*lengths, 1024) + 256, parallel=max(counts), prefix_cache=False, **options) as llm:
        result: dict[str, Any] = {"load_s": time.perf_counter() - start, "plan": str(llm.plan)}
        rng = np.random.default_rng(0)
        n_vocab = llm.model.hparams.n_vocab

        def ids(n: int) -> list[int]:
            return [int(i) for i in rng.integers(0, min(n_vocab, 32000), n)]

        for n in lengths:
            times = []
            for _ in range(3):
                prompt = ids(n)
                start = time.perf_counter()
                llm.generate([prompt], max_tokens=1, temperature=0, ignore_eos=True)
                times.append(time.perf_counter() - start)
            result[f"prefill {n}"] = n / min(times)
        for count in counts:
            prompts = [ids(16) for _ in range(count)]
            llm.generate(prompts, max_tokens=8, temperature=0, ignore_eos=True)
            before = llm.stats.native_s
            start = time.perf_counter()
            llm.generate(prompts, max_tokens=args.n, temperature=0, ignore_eos=True)
            seconds = time.perf_counter() - start
            result[f"decode x{count}"] = count * args.n / seconds
            result[f"python x{count}"] = 1 - (llm.stats.native_s - before) / seconds
        result["answer"] = llm.generate(
            [list(range(100, 132))], max_tokens=32, temperature=0, ignore_eos=True
        )[0].ids
        return result


def main() -> None:
    """Measure all modes and print them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--device", default="cuda:0,cuda:1")
    parser.add_argument("-p", default="512,4096")
    parser.add_argument("-n", type=int, default=128)
    parser.add_argument("--parallel", default="1,4,16")
    args = parser.parse_args()
    devices = args.device.split(",")
    n = len(devices)
    modes: dict[str, dict[str, Any]] = {
        "one": {"device": devices[0]},
        f"tp {n}": {"device": args.device, "tp": n},
        f"layer split {n}": {"device": args.device, "layer_split": n},
    }
    model = Model(args.model)
    size = model.n_bytes
    model.close()
    results = {name: measure(args.model, args, **options) for name, options in modes.items()}
    print(f"{args.model}: {size / 1e9:.1f} GB")
    for name, result in results.items():
        same = sum(a == b for a, b in zip(result["answer"], results["one"]["answer"]))
        print(
            f"{name}: load {result['load_s']:.1f} s, {same} of 32 greedy tokens as one device\n{result['plan']}"
        )
        for key, value in result.items():
            if key.startswith(("prefill", "decode")):
                print(f"    {key:14} {value:9.0f} tok/s")
            elif key.startswith("python"):
                print(f"    {key:14} {100 * value:9.1f} %")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
