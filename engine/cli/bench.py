"""`pyggml bench`: prefill speed by length, decode speed by number of sequences, medians of repeats.

Beside decode stands what memory allows: the bytes that a step reads over the bandwidth that copies reach.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any, TypeVar

import numpy as np

import pyggml as gg

from ..errors import ConfigError
from ..llm import LLM
from ..placement import MIN_CTX
from . import bench_profile
from .bench_modes import Where, modes, options_text, winner_lines, winners
from .loading import open_llm, open_model, start_lines, warn_of_unused_gpus
from .measure import N_SHORT, decode, n_decode_ctx, prefill, random_prompt
from .settings import Settings
from .table import render
from .terminal import counting_bar, one_line, say
from .units import shown_rate, shown_seconds

T = TypeVar("T")


def bench(settings: Settings) -> int:
    """Measure and print a table, with --json one line of JSON after it."""
    is_comparing = settings["modes"] == "all"
    compared = modes(settings) if is_comparing else [{}]
    if settings["ctx"]:
        _check_lengths(settings, settings["ctx"], f"{settings.source('ctx')} {settings['ctx']}")
    with contextlib.closing(open_model(settings)) as model:
        if not settings["ctx"]:
            limit = model.hparams.n_ctx_train
            _check_lengths(settings, limit, f"the model's context of {limit}")
        document: dict[str, Any] = {"model": model.name, "path": str(model.path), "architecture": model.arch}
    warn_of_unused_gpus(settings)
    if not is_comparing:
        document |= _measured(settings, {}, document["model"])
        print("\n".join([_table(document), *_lines_below(document)]))
        document["profile"] = _profiles(settings, {})
    else:
        document["modes"] = [_measured_or_refused(settings, where, document["model"]) for where in compared]
        document["winners"] = winners(settings["model"], document["modes"])
        print(_comparison(document["modes"]))
        print("\n".join(["", *winner_lines(document["winners"])]))
        for where, found in zip(compared, document["modes"]):
            if "refusal" not in found:
                found["profile"] = _profiles(settings, where)
    if settings["json"]:
        print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def _check_lengths(settings: Settings, limit: int, whose: str) -> None:
    """Raise ConfigError for a test that a context of `limit` tokens cannot hold."""
    longest = max(settings["n-prompt"])
    if longest > limit:
        raise ConfigError(f"{settings.source('n-prompt')}: a prompt of {longest} tokens does not fit {whose}")
    n = n_decode_ctx(settings["n-gen"], max(settings["parallel"]))
    if n > limit:
        raise ConfigError(
            f"{settings.source('n-gen')}: the longest decode test takes {n} tokens, which do not fit {whose}"
        )


def _measured_or_refused(settings: Settings, where: Where, name: str) -> dict[str, Any]:
    """One mode of several; where the model cannot be loaded so, the reason."""
    options = {"options": options_text(where)}
    try:
        return options | _measured(settings, where, name)
    except (ConfigError, gg.AllocationError, gg.DeviceError) as error:
        say(f"pyggml bench: {options['options']}: {one_line(str(error))}")
        return options | {"refusal": str(error)}


def _measured(settings: Settings, where: Where, name: str) -> dict[str, Any]:
    """All tests of one mode; the model is loaded anew for each number of sequences."""
    rng = np.random.default_rng(settings["seed"])
    found: dict[str, Any] = {}
    start = time.perf_counter()
    with _opened(settings, 1, where, max(settings["n-prompt"])) as llm:
        found["load_s"] = time.perf_counter() - start
        found |= {"plan": [asdict(placement) for placement in llm.plan], "notes": list(llm.notes)}
        print(f"{one_line(name)}, loaded in {shown_seconds(found['load_s'])}")
        print("\n".join([*start_lines(llm), ""]))
        found["prefill"] = [_prefill(settings, llm, rng, n) for n in settings["n-prompt"]]
        alone = [_decode(settings, llm, rng, 1)] if 1 in settings["parallel"] else []
        found["sums_s"] = llm.probe.sums()
    found["decode"] = []
    for n_seq in settings["parallel"]:
        if n_seq == 1:
            found["decode"] += alone
            continue
        with _opened(settings, n_seq, where) as llm:
            found["decode"].append(_decode(settings, llm, rng, n_seq))
    return found


def _profiles(settings: Settings, where: Where) -> list[dict[str, Any]]:
    """With --profile print where each kind of step spends its time; last, since tracing slows what follows."""
    if not settings["profile"]:
        return []
    n_past = N_SHORT + settings["n-gen"] // 2
    longest = max(settings["n-prompt"])
    found = []
    with _opened(settings, max(settings["parallel"]), where, longest) as llm:
        n = min(llm.probe.max_tokens, longest)
        steps = [{"n_tokens": n}, *({"n_seq": n_seq, "n_past": n_past} for n_seq in settings["parallel"])]
        for step in steps:
            found.append(bench_profile.document(llm.probe.profile(**step)))
            mode = [f"\n{options_text(where)}"] if where else []
            print("\n".join([*mode, "", *bench_profile.profile_lines(found[-1])]), flush=True)
    return found


def _opened(settings: Settings, n_seq: int, where: Where, n_prompt: int = 0) -> LLM:
    """The model with room for decode tests of `n_seq` sequences, and for a prompt with an answer of one token."""
    needed = max(MIN_CTX, n_decode_ctx(settings["n-gen"], n_seq), n_prompt + 1)
    ctx = max(needed, settings["ctx"] or 0)
    return open_llm(settings, open_model(settings), ctx=ctx, parallel=n_seq, where=where)


def _repeated(settings: Settings, what: str, measure: Callable[[], T]) -> list[T]:
    """Measurements after one that warms up."""
    n_runs = settings["repeat"] + 1
    runs = []
    with counting_bar(not settings["json"], what, n_runs, "run") as advance:
        for _ in range(n_runs):
            runs.append(measure())
            advance(1)
    return runs[1:]


def _prefill(settings: Settings, llm: LLM, rng: np.random.Generator, n_prompt: int) -> dict[str, Any]:
    runs = _repeated(settings, f"prefill {n_prompt}", lambda: prefill(llm, random_prompt(rng, llm, n_prompt)))
    return {"n_prompt": n_prompt, "tok_per_s": median(runs), "runs_tok_per_s": runs}


def _decode(settings: Settings, llm: LLM, rng: np.random.Generator, n_seq: int) -> dict[str, Any]:
    n_gen = settings["n-gen"]
    runs = _repeated(
        settings,
        f"decode {n_gen} x {n_seq}",
        lambda: decode(llm, [random_prompt(rng, llm, N_SHORT) for _ in range(n_seq)], n_gen),
    )
    speeds = [run.tok_per_s for run in runs]
    return {
        "parallel": n_seq,
        "n_gen": n_gen,
        "tok_per_s": median(speeds),
        "step_ms": 1000 * n_seq / median(speeds),
        "python_share": median(run.python_share for run in runs),
        "ceiling_tok_per_s": llm.probe.decode_ceiling(n_seq, N_SHORT + n_gen // 2),
        "replays": llm.probe.replays(),
        "runs_tok_per_s": speeds,
    }


def _table(document: dict[str, Any]) -> str:
    rows = [
        ("prefill", p["n_prompt"], 1, shown_rate(p["tok_per_s"]), "", "", "") for p in document["prefill"]
    ]
    rows += [
        (
            "decode", d["n_gen"], d["parallel"], shown_rate(d["tok_per_s"]), shown_rate(d["ceiling_tok_per_s"]),
            f"{d['step_ms']:.2f} ms", f"{100 * d['python_share']:.1f} %",
        )
        for d in document["decode"]
    ]  # fmt: skip
    header = ("test", "tokens", "sequences", "tokens/s", "memory allows", "step", "in Python")
    return render(rows, header=header, right=(1, 2, 3, 4, 5, 6))


def _lines_below(document: dict[str, Any]) -> list[str]:
    """Recorded launches, and sums over ranks."""
    lines = [""]
    if document["decode"] and any(gg.device(rank["device"]).module == "cuda" for rank in document["plan"]):
        lines += [bench_profile.replay_line(document["decode"][-1]["replays"])]
    return [*lines, *bench_profile.sums_lines(document["sums_s"])]


def _comparison(measured: list[dict[str, Any]]) -> str:
    """Tokens a second, a line a mode."""
    done = next((mode for mode in measured if "refusal" not in mode), None)
    if done is None:
        raise ConfigError("no mode can be loaded; the lines above say why")
    header = ["options", *(f"prefill {p['n_prompt']}" for p in done["prefill"])]
    header += [f"decode x {d['parallel']}" for d in done["decode"]]
    rows = []
    for mode in measured:
        tests = [] if "refusal" in mode else [*mode["prefill"], *mode["decode"]]
        speeds = [shown_rate(test["tok_per_s"]) for test in tests] or ["refused"] * (len(header) - 1)
        rows.append([mode["options"], *speeds])
    return render(rows, header=header, right=range(1, len(header)))
