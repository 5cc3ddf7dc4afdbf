#!/usr/bin/env python3
"""Which node of a graph differs between a device and the CPU, for a tiny model of an architecture.

usage: compare_nodes.py DEVICE ARCH [VARIANT] [--cache f16] [--chunk 0|1] [--tp N] [--quant F32] [--each N] [--no-feed]
                        [--tolerance 1e-5] [--runs 1] [--show 15] [--no-plain] [--settings] [--perturb K] [--verbose]

First compares logits as they come, in processes of their own; then runs the tiny model of the tests (ARCH and VARIANT
are those of tests/tiny_families.py or tests/tiny.py) node by node on the CPU and on the device. NODE lines are nodes
that made other values of the same operands, SOURCE lines those that found other operands than were made for them: a
sum over ranks, a mask, or memory written over. Ends with one JSON line; the exit status is 1 where something differs.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from backend_hook import Comparison, NodeByNode, Recording
from distance import nmse
from family_modes import writer_of
from graph_nodes import Finding, RankRun
from stored_logits import PROMPT
from tiny import FAMILIES, VARIANTS
from tiny_families import RECIPES

import pyggml as gg
from pyggml.engine import LLM

# What logits may differ by without a fault: the limits of tests/gpu/test_family_cards.py.
FLOATS, FLOAT_LIMIT, LIMIT = ("F32", "F16", "BF16"), 1e-4, 5e-3
# Node by node, with ggml's kernels alone and nothing recorded.
BARE = {"PYGGML_FUSED": "0", "PYGGML_CUDA_GRAPHS": "0", "GGML_CUDA_DISABLE_GRAPHS": "1"}
SETTINGS = ("PYGGML_FUSED=0", "PYGGML_CUDA_GRAPHS=0", "GGML_CUDA_DISABLE_FUSION=1")
ADVICE = f"""
Plain logits differ or fail, and no node does. Try {", ".join(SETTINGS)} in the environment,
and --each 3; --settings tries them all. With experts, another one may have been chosen for a rounding."""
N_UNPAIRED = 6


def devices_of(device: str, n_ranks: int) -> str:
    """One for each rank."""
    if n_ranks == 1 or "," in device:
        return device
    module = device.partition(":")[0]
    return ",".join("cpu" if module == "cpu" else f"{module}:{i}" for i in range(n_ranks))


def score(path: str | Path, device: str, args: argparse.Namespace, side: NodeByNode | None = None) -> np.ndarray:
    """Logits of the tests' prompt."""
    mode = {"tp": args.tp} if args.tp > 1 else {}
    cache, devices = {"cache_type_k": args.cache, "cache_type_v": args.cache}, devices_of(device, args.tp)
    with LLM(path, device=devices, threads=args.threads, ctx=256, parallel=2, **cache, **mode) as llm:
        with side.caught() if side is not None else nullcontext():
            return llm.score(PROMPT, logits=True, chunk=args.chunk or None)


def ours_again(args: argparse.Namespace, device: str, *options: str) -> list[str]:
    """The command that runs this program with the same model."""
    same = [f"--{name}={getattr(args, name)}" for name in ("cache", "chunk", "tp", "quant", "threads", "tolerance")]
    return [sys.executable, __file__, device, args.arch, args.variant, *same, *options]


def plain_logits(
    path: Path, device: str, args: argparse.Namespace, settings: dict[str, str] | None = None
) -> np.ndarray | None:
    """Logits without any of this. A process of its own: settings are read once, and what crashes ends only that."""
    out = path.with_suffix(".npy")
    out.unlink(missing_ok=True)
    command = ours_again(args, device, "--plain-only", str(path), str(out))
    done = subprocess.run(
        command, check=False, env=os.environ | (settings or {}), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if out.exists():
        return np.load(out)
    print(f"the plain run on {device} ended with {done.returncode}: {done.stdout.decode('utf-8', 'replace')[-3000:]}")
    return None


def print_distance(what: str, found: np.ndarray, right: np.ndarray) -> float:
    """The NMSE of logits, which is printed with that of each position."""
    error, rows = nmse(found, right), [nmse(*row) for row in zip(found, right)]
    by_position = " ".join(f"{row:.0e}" for row in rows) if max(rows) > 1e-7 else "all below 1e-7"
    print(f"{what}: NMSE {error:.2e}; by position {by_position}", flush=True)
    return error


def print_details(run: RankRun, n_shown: int) -> None:
    """The nodes of a run that differ."""
    bad = [finding for finding in run.findings if finding.differs]
    print(f"\nrun {run.number} rank {run.rank}: {len(bad)} of {len(run.findings)} compared nodes differ")
    for finding in bad[:n_shown]:
        node = finding.node
        word = "NODE" if finding.is_bad else "SOURCE"
        print(f"  {word} #{node.index} NMSE {finding.error:.2e}{finding.note}: {node.text}")
        if finding.example:
            print(f"      {finding.example}")
        for j, source in enumerate(finding.sources):
            error = "" if source.error is None else f"  NMSE {source.error:.1e}"
            notes = "".join(f"  <-- {words}" for words in (source.alarm, source.note) if words)
            print(f"      src{j} {source.text}{error}{notes}")
    if len(bad) > n_shown:
        print(f"  ... and {len(bad) - n_shown} more")


def print_summary(findings: list[Finding]) -> None:
    """What differs in all runs, by operation and what it reads."""
    errors: dict[str, list[float]] = defaultdict(list)
    for finding in findings:
        if finding.is_bad:
            errors[finding.node.kind].append(finding.error)
    for kind, of_kind in sorted(errors.items(), key=lambda item: -len(item[1])):
        print(f"  {len(of_kind):5} NODE  worst {max(of_kind):.2e}  {kind}")
    if n := sum(finding.has_bad_source for finding in findings):
        print(f"  {n:5} SOURCE (a sum over ranks, a mask, memory written over, or nodes that only one side has)")


def print_runs(runs: list[list[RankRun]]) -> None:
    """The worst node of each run, in a line each."""
    print()
    for ranks in runs:
        findings = [(finding, run) for run in ranks for finding in run.findings]
        if findings:
            worst, run = max(findings, key=lambda pair: pair[0].error)
            where = f"#{worst.node.index} {worst.node.operation}" + (f" of rank {run.rank}" if len(ranks) > 1 else "")
            place = f", at {where}" if worst.error else ""
            n_bad = sum(finding.differs for finding, _ in findings)
            print(f"run {run.number}: worst NMSE {worst.error:.1e}{place}; {n_bad} of {len(findings)} nodes differ")


def print_unpaired(ranks: list[RankRun], device: str) -> None:
    """Nodes of a run that only one side has."""
    for run in ranks:
        if run.only_here or run.only_there:
            print(
                f"\nrun {run.number} rank {run.rank}: not compared, {len(run.only_here)} nodes that only {device} has "
                f"and {len(run.only_there)} that only the CPU has"
            )
            sides = [[(name, n) for n in nodes] for name, nodes in ((device, run.only_here), ("cpu", run.only_there))]
            n_first = max(N_UNPAIRED // 2, N_UNPAIRED - len(sides[1]))
            first = sides[0][:n_first]
            for name, node in first + sides[1][: N_UNPAIRED - len(first)]:
                print(f"    {name}: #{node.index} {node.text}")
            return


def report(side: Comparison, args: argparse.Namespace) -> dict[str, Any]:
    """Print what differs first, then the rest; the facts of it."""
    every_run = [run for ranks in side.runs for run in ranks]
    findings = [finding for run in every_run for finding in run.findings]
    differing = [run for run in every_run if any(finding.differs for finding in run.findings)]
    for run in differing[: args.runs]:
        print_details(run, args.show)
    print("\nin all runs:" if differing else f"\nno node differs of {len(findings)}")
    print_summary(findings)
    print_runs(side.runs)
    print_unpaired(side.runs[0] if side.runs else [], args.device)
    first = next(((run, f) for run in differing for f in run.findings if f.differs), None)
    return {
        "n_runs": len(side.runs),
        "n_compared": len(findings),
        "n_unpaired": sum(len(run.only_here) for run in every_run),
        "n_differing": sum(finding.differs for finding in findings),
        "worst_nmse": max((finding.error for finding in findings), default=0.0),
        "first": None if first is None else {
            "run": first[0].number, "rank": first[0].rank, "node": first[1].node.index,
            "operation": first[1].node.operation, "text": first[1].node.text, "nmse": first[1].error,
            "is_node": first[1].is_bad,
        },
    }  # fmt: skip


def by_nodes(path: Path, args: argparse.Namespace, right_plain: np.ndarray | None) -> dict[str, Any]:
    """Compare node by node, in this process."""
    os.environ.update(BARE)
    recording = Recording(is_verbose=args.verbose)
    right = score(path, "cpu", args, recording)
    if right_plain is not None and (apart := nmse(right, right_plain)) > args.tolerance:
        print(f"the CPU itself gives other logits node by node: NMSE {apart:.2e}")
    side = Comparison(
        recording, tolerance=args.tolerance, each=args.each, is_fed=args.feed, perturbed=args.perturb,
        is_verbose=args.verbose,
    )  # fmt: skip
    error, found = "", None
    try:
        found = score(path, args.device, args, side)
    except Exception:
        error = traceback.format_exc()
    error = recording.fault or side.fault or error
    if not side.n_segments or not recording.n_segments:
        error = error or "nothing was caught: is struct ggml_backend as bench/backend_hook.py says?"
    elif len(side.runs) != len(recording.runs):
        error = error or f"{len(side.runs)} runs on {args.device}, {len(recording.runs)} on the CPU"
    facts = report(side, args)
    if found is not None:
        print_distance("\nlogits node by node" + (", with the CPU's operands" if args.feed else ""), found, right)
    if error:
        print(f"\nFAILED: {error}")
    return facts | {"error": error}


def try_settings(path: Path, args: argparse.Namespace, right: np.ndarray) -> dict[str, float | None]:
    """NMSE of the plain logits under each setting, and of the worst node where nodes run in threes."""
    errors: dict[str, float | None] = {}
    print()
    for setting in SETTINGS:
        found = plain_logits(path, args.device, args, dict([setting.split("=")]))
        errors[setting] = None if found is None else nmse(found, right)
        print(f"plain logits with {setting}: NMSE {errors[setting]}", flush=True)
    command = ours_again(args, args.device, "--each=3", "--no-plain")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    facts = json.loads(last) if last.startswith("{") else {"worst_nmse": None, "first": None}
    errors["--each 3"] = facts["worst_nmse"]
    first = f", first {facts['first']['text']}" if facts["first"] else ""
    print(f"worst node with --each 3: NMSE {facts['worst_nmse']}{first}", flush=True)
    return errors


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    switch = argparse.BooleanOptionalAction
    parser.add_argument("device", help="cpu, cuda:0, cuda:0,cuda:1")
    parser.add_argument("arch")
    parser.add_argument("variant", nargs="?", default="")
    parser.add_argument("--cache", default="f16", help="type of K and V in the cache")
    parser.add_argument("--chunk", type=int, default=0, help="tokens a run; 0 for the whole prompt")
    parser.add_argument("--tp", type=int, help="tensor-parallel ranks, on both sides; else as many as devices")
    parser.add_argument("--quant", default="F32", help="type of the weights")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--each", type=int, default=1, help="nodes a launch, for ggml's own fusion; 0 for all")
    parser.add_argument("--feed", action=switch, default=True, help="give each node the CPU's operands")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="NMSE above which a node differs")
    parser.add_argument("--runs", type=int, default=1, help="differing runs that are shown in detail")
    parser.add_argument("--show", type=int, default=15, help="nodes of each of them")
    parser.add_argument("--perturb", type=int, default=-1, metavar="K", help="change node K's result, to see it found")
    parser.add_argument("--plain", action=switch, default=True, help="first compare logits as they come")
    parser.add_argument("--settings", action="store_true", help="compare them also under settings that rule out causes")
    parser.add_argument("--verbose", action="store_true", help="print each node before it runs: which one crashes?")
    parser.add_argument("--plain-only", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.tp = args.tp or args.device.count(",") + 1
    known = {"", *VARIANTS} if args.arch in FAMILIES else RECIPES.get(args.arch)
    if known is None:
        parser.error(f"no tiny model of {args.arch}; there are {', '.join([*FAMILIES, *RECIPES])}")
    if args.variant not in known and not set(args.variant.split("+")) <= set(known):
        parser.error(f"no variant {args.variant!r} of {args.arch}; there are {', '.join(filter(None, known))}")
    if args.each != 1 and not args.feed:
        parser.error("--no-feed needs --each 1: nodes that run again would read what was written over")
    try:
        for device in devices_of(args.device, args.tp).split(","):
            gg.device(device)
    except gg.DeviceError as error:
        parser.error(str(error))
    return args


def main() -> None:
    """Compare and print."""
    args = options()
    if args.plain_only:
        np.save(args.plain_only[1], score(args.plain_only[0], args.device, args))
        return
    faulthandler.enable()
    names = ("device", "arch", "variant", "quant", "cache", "chunk", "tp", "each", "feed", "tolerance")
    facts: dict[str, Any] = {name: getattr(args, name) for name in names}
    print(f"{args.arch} {args.variant or '(base)'}, {devices_of(args.device, args.tp)} against", end=" ")
    print(f"{devices_of('cpu', args.tp)}: weights {args.quant}, cache {args.cache}, chunk {args.chunk}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = writer_of(args.arch)(Path(folder) / "model.gguf", args.arch, quant=args.quant, variant=args.variant)
        plain = right = error = None
        if args.plain or args.settings:
            plain, right = plain_logits(path, args.device, args), plain_logits(path, "cpu", args)
            if plain is not None and right is not None:
                error = print_distance("plain logits", plain, right)
        limit = max(args.tolerance, FLOAT_LIMIT if args.quant in FLOATS else LIMIT)
        does_plain_differ = (args.plain or args.settings) and (error is None or error > limit)
        environment = dict(os.environ)
        facts |= {"plain_nmse": error} | by_nodes(path, args, right)
        if does_plain_differ and not facts["n_differing"] and not facts["error"]:
            print(ADVICE)
        if args.settings and right is not None:
            os.environ.clear()
            os.environ.update(environment)
            facts["settings"] = try_settings(path, args, right)
    facts["differs"] = bool(does_plain_differ or facts["n_differing"] or facts["error"])
    print(json.dumps(facts))
    raise SystemExit(int(facts["differs"]))


if __name__ == "__main__":
    main()
