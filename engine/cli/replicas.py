"""`--dp`: replicas planned in a process of their own, which ends before the first of them loads.

Planning opens devices, and a card that was opened keeps memory for as long as the process lives; a server's front must
hold none. `python -m pyggml.engine.cli.replicas` is that process: it reads what is asked on standard input and writes
the options of each replica to standard output, both JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import pyggml as gg

from ..errors import ConfigError, EngineError
from ..load_options import LoadOptions
from ..model import Model
from ..replica_plan import plan_replicas


def planned_replicas(path: str, options: Sequence[LoadOptions]) -> list[LoadOptions]:
    """The options to load each replica with, of one context that fits them all.

    Raises ConfigError where one does not fit, EngineError where planning itself failed.
    """
    asked = json.dumps({"model": path, "replicas": [asdict(own) for own in options]})
    done = subprocess.run(
        [sys.executable, "-m", "pyggml.engine.cli.replicas"], input=asked, stdout=subprocess.PIPE, text=True,
        check=False, start_new_session=True,  # Ctrl-C is for this process, which then ends the child
    )  # fmt: skip
    if done.returncode:
        raise EngineError(f"the process that plans replicas ended with status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    if "refusal" in found:
        raise ConfigError(found["refusal"])
    return [LoadOptions(**own) for own in found["replicas"]]


def processors(options: Sequence[LoadOptions]) -> list[tuple[int, ...]]:
    """This process's processors dealt to the replicas on CPUs, in order; none for the others."""
    able = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    n_ranks = [sum(d.kind == "cpu" for d in own.devices()) for own in options]
    each = len(able) // max(1, sum(n_ranks))
    if each == 0:
        raise ConfigError(
            f"--pin needs a processor for each of the {sum(n_ranks)} CPU ranks; this process may use {len(able)}"
        )
    dealt, start = [], 0
    for n in n_ranks:
        dealt.append(tuple(able[start : start + n * each]))
        start += n * each
    return dealt


def as_llm_options(options: LoadOptions) -> dict[str, Any]:
    """Options by the names that LLM has for them."""
    return {field.name: getattr(options, field.name) for field in fields(options)}


def _main() -> None:
    given = sys.stdin.read()
    if not given:
        return  # who asked has ended
    asked = json.loads(given)
    options = [LoadOptions(**own) for own in asked["replicas"]]
    found: dict[str, Any]
    try:
        with contextlib.closing(Model(asked["model"])) as model:
            found = {"replicas": [asdict(own) for own in plan_replicas(model, options).options]}
    except gg.PyggmlError as error:
        found = {"refusal": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
