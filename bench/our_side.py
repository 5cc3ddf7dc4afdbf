"""pyggml in a process of its own that loads a model once and measures what it is told.

`OurSide` starts the process and talks to it in lines of JSON; this file run as a program is the other end. The work is
the peer's: an empty cache takes a prompt; a token, then so many more; several prompts, then so many tokens of each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))


class OurError(Exception):
    """The process reported a failure, or ended."""


class OurSide:
    """A process that measures one model, with the options of LLM; loading is over when the constructor returns."""

    def __init__(self, path: str, options: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **env},
        )  # fmt: skip
        try:
            self.opened = self.ask(open=path, options=dict(options))
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> dict[str, Any]:
        """Send one order and wait for its answer; raises OurError."""
        assert self._process.stdin is not None and self._process.stdout is not None, "they are pipes"
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise OurError(f"the process ended with {self._process.wait()}") from None
        line = self._process.stdout.readline()
        if not line:
            raise OurError(f"the process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OurError(answer["error"])
        return answer

    def close(self) -> None:
        """Free the model and end the process."""
        assert self._process.stdin is not None and self._process.stdout is not None, "they are pipes"
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> OurSide:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _answer(llm: Any, order: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    from pyggml.engine.cli.bench_profile import document
    from pyggml.engine.cli.measure import decode, prefill, random_prompt

    if "profile" in order:
        step = {**order["profile"]}
        step["n_tokens"] = min(step.get("n_tokens", 1), llm.probe.max_tokens)
        return document(llm.probe.profile(**step))
    cold, n_runs = int(order["cold"]), int(order["runs"]) + int(order["cold"])
    if "prefill" in order:
        n = int(order["prefill"])
        return {"tok_per_s": [prefill(llm, random_prompt(rng, llm, n)) for _ in range(n_runs)][cold:]}
    n_seq, n_prompt = int(order.get("parallel", 1)), int(order.get("prompt", 1))
    runs = [
        decode(llm, [random_prompt(rng, llm, n_prompt) for _ in range(n_seq)], int(order["decode"]))
        for _ in range(n_runs)
    ][cold:]
    return {
        "tok_per_s": [run.tok_per_s for run in runs],
        "python_share": [run.python_share for run in runs],
        "stats": {**dataclasses.asdict(llm.stats), "replays": llm.probe.replays()},
    }


def _serve() -> None:
    from time import perf_counter

    from pyggml.engine import LLM

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not get among the answers
    llm: LLM | None = None
    rng = np.random.default_rng(0)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if "open" in order:
                start = perf_counter()
                llm = LLM(order["open"], prefix_cache=False, **order["options"])
                found: dict[str, Any] = {"load_s": perf_counter() - start, "notes": list(llm.notes)}
            else:
                found = _answer(llm, order, rng)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(found), file=answers, flush=True)
    if llm is not None:
        llm.close()


if __name__ == "__main__":
    _serve()
