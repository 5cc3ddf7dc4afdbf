#!/usr/bin/env python3
"""Load time and host memory of a model, and the time to read a large vocabulary.

usage: load.py [MODEL.gguf] [--device NAME,...] [--tp N] [--vocabulary MODEL.gguf]

Without MODEL a 2 GB synthetic one is written first. Each measurement is a process of its own that
loads once; anonymous memory (RssAnon) is sampled while it loads, and what was allocated for weights
on the CPU is taken off. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

LOADING = """
import json, sys, threading, time
from pyggml.engine import LLM
def anon():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(l.split()[1]) * 1024 for l in lines if l.startswith("RssAnon"))
before, peak, done = anon(), [0], threading.Event()
def watch():
    while not done.wait(0.005):
        peak[0] = max(peak[0], anon())
watcher = threading.Thread(target=watch); watcher.start()
start = time.perf_counter()
llm = LLM(sys.argv[1], device=sys.argv[2], tp=int(sys.argv[3]) or None, ctx=512, parallel=1)
seconds = time.perf_counter() - start
done.set(); watcher.join()
on_cpu = sum(p.weights_bytes for p in llm.plan if p.device == "cpu")
grown = max(peak[0], anon()) - before - on_cpu
print(json.dumps({"load_s": seconds, "anon_bytes": grown, "weights_bytes": llm.model.n_bytes}))
llm.close()
"""

VOCABULARY = """
import json, sys, time
from pyggml.engine import Model
start = time.perf_counter()
model = Model(sys.argv[1])
ids = model.tokenizer.encode("Hello world")
print(json.dumps({"vocabulary": model.tokenizer.n_vocab, "seconds": time.perf_counter() - start}))
"""


def child(code: str, *arguments: str) -> dict[str, float]:
    """Run code in a process of its own and read the JSON line that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tp", type=int, default=0, help="cut every layer over so many devices")
    parser.add_argument("--vocabulary", help="a GGUF whose tokenizer is read and built")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.model
        if path is None:
            from synthetic_model import write

            path = f"{folder}/synthetic.gguf"
            start = time.perf_counter()
            write("llama-1b", "q8_0", path, n_layer=22)
            print(
                f"wrote {Path(path).stat().st_size / 1e9:.2f} GB in {time.perf_counter() - start:.1f} s",
                file=sys.stderr,
            )
        result = child(LOADING, path, args.device, str(args.tp))
    rate = result["weights_bytes"] / result["load_s"] / 1e9
    size = result["weights_bytes"] / 1e9
    print(f"load            {result['load_s']:8.2f} s   {size:.2f} GB of weights, {rate:.1f} GB/s")
    print(f"anonymous peak  {result['anon_bytes'] / 2**20:8.0f} MiB beyond the weights")
    if args.vocabulary:
        words = child(VOCABULARY, args.vocabulary)
        print(f"vocabulary      {words['seconds']:8.2f} s   {words['vocabulary']:.0f} tokens")
        result |= {"vocabulary": words["vocabulary"], "vocabulary_s": words["seconds"]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
