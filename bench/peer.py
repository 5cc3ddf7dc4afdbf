"""llama.cpp's own measuring programs as the peer: each call loads the model once and tells speeds as they come.

Source of the work: llama-bench (-p: an empty cache takes a prompt; -n: an empty cache takes so many tokens one by
one) and llama-batched-bench (so many prompts, then so many tokens of each, all sequences in every step).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MAX_TRIES = 8
# What pyggml tells ggml in the environment when it is imported; llama.cpp records its launches by itself.
_OURS = ("GGML_CUDA_DISABLE_GRAPHS",)


class PeerError(Exception):
    """A program of llama.cpp failed; the message has its last words."""


def reference_bin() -> Path:
    """The folder of llama.cpp's programs: PYGGML_BENCH_REFERENCE, PYGGML_TEST_REFERENCE, else build_ggml's."""
    for name in ("PYGGML_BENCH_REFERENCE", "PYGGML_TEST_REFERENCE"):
        if os.environ.get(name):
            return Path(os.environ[name])
    command = [sys.executable, str(ROOT / "build_ggml.py"), "--print", "reference"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise PeerError(
            "llama.cpp's programs are not built: build_ggml.py --reference, or set PYGGML_BENCH_REFERENCE"
        )
    return Path(done.stdout.strip())


def their_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of llama.cpp's programs: without what pyggml has set for its own ggml."""
    return {name: value for name, value in os.environ.items() if name not in _OURS} | dict(env)


def speeds(
    path: str, flags: Sequence[str], env: Mapping[str, str], prompts: Sequence[int], n_gen: int, n_runs: int
) -> Iterator[tuple[str, int, list[float]]]:
    """llama-bench with flash attention: (`prefill` or `decode`, size, tokens a second of each run after its warm-up).

    Prompts and tokens have a process each, since those after long prompts were slower than those of a process without.
    """
    command = ["llama-bench", "-m", path, "-fa", "1", "-r", str(n_runs), "-o", "jsonl", *flags]
    works = [["-p", ",".join(map(str, prompts)), "-n", "0"]] if prompts else []
    works += [["-p", "0", "-n", str(n_gen)]] if n_gen else []
    for work in works:
        for line in _lines([*command, *work], env):
            kind = "prefill" if line["n_prompt"] else "decode"
            yield kind, line["n_prompt"] or line["n_gen"], [float(s) for s in line["samples_ts"]]


def parallel_speeds(
    path: str,
    flags: Sequence[str],
    env: Mapping[str, str],
    n_prompt: int,
    n_gen: int,
    counts: Sequence[int],
    n_runs: int,
) -> Iterator[tuple[int, list[float]]]:
    """llama-batched-bench: (sequences, generated tokens a second of all together in each run, the first one cold)."""
    command = ["llama-batched-bench", "-m", path, "-fa", "on", "--output-format", "jsonl", *flags]
    command += ["-npp", str(n_prompt), "-ntg", str(n_gen), "-c", str(max(counts) * (n_prompt + n_gen))]
    left = list(counts)
    for n_tries in range(1, _MAX_TRIES + 1):
        # It may lose the last lines that it prints, so more runs come after those that are wanted.
        runs = [n for n in left for _ in range(n_runs)] + [min(left)] * n_tries
        found: dict[int, list[float]] = {n: [] for n in left}
        for line in _lines([*command, "-npl", ",".join(map(str, runs))], env):
            n = int(line["pl"])
            found[n].append(float(line["speed_tg"]))
            if len(found[n]) == n_runs:
                left.remove(n)
                yield n, list(found[n])
        if not left:
            return
    raise PeerError(f"llama-batched-bench printed nothing for {left} sequences in {_MAX_TRIES} tries")


def _lines(command: list[str], env: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The JSON lines of a program as it prints them."""
    program = reference_bin() / command[0]
    if not program.exists():
        raise PeerError(f"{program} does not exist")
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [str(program), *command[1:]],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=their_environment(env),
        )
        assert process.stdout is not None, "it is a pipe"
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        if status:
            errors.seek(0)
            words = " | ".join(errors.read().split("\n")[-6:]).strip(" |")
            raise PeerError(f"{command[0]} ended with {status}: {words[-600:]}")
