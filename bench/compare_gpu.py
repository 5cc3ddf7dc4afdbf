#!/usr/bin/env python3
"""pyggml beside llama.cpp on the same files in one run: prefill, decode and parallel sequences on one and two GPUs.

usage: compare_gpu.py [--models llama-8b:q8_0,...] [--modes one,tp,layer] [--what prefill,decode,parallel] [...]

A model is SHAPE:TYPE (written by synthetic_model.py into --folder if absent) or a file. For each model and mode the two
take turns for --rounds, each time with a cold run that is left out and --repeat runs that count; medians are compared.
A mode with a colon (tp:nccl-shm, tp:host, layer:host) is for cards without peer access, for both sides.
Every sample and every finished row is a line of JSON at once; at the end come a table, the targets, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import modes as mode_table
from estimate import Budget
from modes import Mode
from our_side import OurError, OurSide
from peer import PeerError, parallel_speeds, speeds
from report import print_report
from synthetic_model import SHAPES, write
from targets import Row

import pyggml as gg
from pyggml.engine import Model
from pyggml.engine.ceiling import bandwidth, step_bytes
from pyggml.engine.cli.bench_profile import profile_lines

MODELS = "llama-8b:q8_0,llama-8b:q4_k,qwen3-30b-a3b:q4_k,llama-70b:q4_k"


def say(**document: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps(document), flush=True)


class Comparison:
    """All rows of one run; `options` are the command line's."""

    def __init__(self, options: argparse.Namespace, devices: list[str]) -> None:
        self.options = options
        self.modes = mode_table.modes(options.modes, devices, options.threads)
        self.rows: dict[tuple[str, str, str, int], Row] = {}
        self.bandwidth = bandwidth(devices[0], options.threads)
        self.budget = Budget(options)

    def model_file(self, name: str) -> str:
        """The model's file, written first where it is a shape and absent."""
        shape, _, kind = name.partition(":")
        if shape not in SHAPES:
            return name
        path = Path(self.options.folder) / f"{shape}-{kind}.gguf"
        if not path.exists():
            start = time.perf_counter()
            write(shape, kind, str(path), n_layer=self.options.layers, vocab_from=self.options.vocab_from)
            say(wrote=str(path), seconds=round(time.perf_counter() - start, 1))
        return str(path)

    def run(self) -> None:
        """Measure all models in all modes, as far as the budget goes."""
        for name in self.options.models:
            path = self.model_file(name)
            for mode in self.modes:
                seconds = self.budget.seconds(name, path, mode)
                if not self.budget.allows(seconds):
                    say(skipped=[name, mode.name], needs_s=round(seconds), left_s=round(self.budget.left_s))
                    continue
                start = time.perf_counter()
                self.measure(name, path, mode)
                say(
                    done=[name, mode.name],
                    seconds=round(time.perf_counter() - start, 1),
                    estimate_s=round(seconds),
                )

    def measure(self, name: str, path: str, mode: Mode) -> None:
        """One model in one mode."""
        what = self.options.what
        if "prefill" in what or "decode" in what:
            prompts = self.options.p if "prefill" in what else []
            n_gen = self.options.n if "decode" in what else 0
            ctx = max(*prompts, n_gen + 2, 64) + 1
            self._turns(name, path, mode, {"ctx": ctx, "parallel": 1}, _Alone(prompts, n_gen, self._n_runs))
        if "parallel" in what:
            counts, n = self.options.parallel, self.options.parallel_prompt
            ctx = max(n + self.options.n + max(counts), 63) + 1
            together = _Together(n, self.options.n, counts, self._n_runs)
            self._turns(name, path, mode, {"ctx": ctx, "parallel": max(counts)}, together)
        for (model, mode_name, *_), row in self.rows.items():
            if (model, mode_name) == (name, mode.name):
                say(row=row.document())

    @property
    def _n_runs(self) -> int:
        return int(self.options.repeat) + 1

    def _turns(self, name: str, path: str, mode: Mode, room: dict[str, int], work: _Work) -> None:
        """Rounds of theirs and ours by turns, our process staying loaded; a side that fails is noted and left out."""

        def note(side: str, what: str, n: int, found: dict[str, Any]) -> None:
            self._note(name, path, mode, side, what, n, found)

        ours: OurSide | None = None
        try:
            ours = OurSide(path, {**mode.ours, **room, **self.options.our_options}, mode.our_env)
            say(opened=[name, mode.name], load_s=ours.opened["load_s"], notes=ours.opened["notes"])
        except OurError as error:
            say(failed=[name, mode.name, "ours"], why=str(error))
        their_turn = mode.their_flags is not None and not self.options.ours_only
        try:
            for _ in range(self.options.rounds):
                if their_turn:
                    try:
                        work.theirs(path, mode, note)
                    except PeerError as error:
                        say(failed=[name, mode.name, "theirs"], why=str(error))
                        their_turn = False
                if ours is not None:
                    try:
                        work.ours(ours, note)
                    except OurError as error:
                        say(failed=[name, mode.name, "ours"], why=str(error))
                        ours.close()
                        ours = None
            if ours is not None and self.options.profile:
                for step in work.profiles:
                    found = ours.ask(profile=step)
                    say(profile=[name, mode.name], **found)
                    print("\n".join(["", *profile_lines(found), ""]), flush=True)
        finally:
            if ours is not None:
                ours.close()

    def _note(
        self, name: str, path: str, mode: Mode, side: str, what: str, n: int, found: dict[str, Any]
    ) -> None:
        """Keep what one turn measured, its cold run left out, and print it."""
        key = name, mode.name, what, n
        row = self.rows.get(key)
        if row is None:
            label = name if name.partition(":")[0] in SHAPES else Path(name).name
            row = self.rows[key] = Row(label, mode.name, what, n, [], [], note=mode.note)
            if what != "prefill":
                n_kv = self.options.n // 2 + (0 if what == "decode" else self.options.parallel_prompt)
                n_seq = n if what != "decode" else 1
                reading = self.bandwidth * mode.reads_at_once
                model = Model(path)
                row.ceiling = n_seq * reading / step_bytes(model, n_seq, n_kv)
                model.close()
        warm = found["tok_per_s"][1:]
        (row.ours if side == "ours" else row.theirs).extend(warm)
        if "python_share" in found:
            row.python_share = sorted(found["python_share"][1:])[len(warm) // 2]
        say(
            sample=[row.model, mode.name, what, n, side],
            tok_per_s=found["tok_per_s"],
            stats=found.get("stats"),
        )


Note = Callable[[str, str, int, dict[str, Any]], None]


class _Work:
    """What both sides do in a turn; `note(side, what, n, found)` takes each result.

    `profiles` are the steps that it is made of, as Probe.profile takes them.
    """

    profiles: list[dict[str, int]]

    def theirs(self, path: str, mode: Mode, note: Note) -> None:
        """llama.cpp's turn."""
        raise AssertionError

    def ours(self, side: OurSide, note: Note) -> None:
        """Our turn."""
        raise AssertionError


class _Alone(_Work):
    """Prompts of several lengths, and tokens of one sequence."""

    def __init__(self, prompts: Sequence[int], n_gen: int, n_runs: int) -> None:
        self.prompts, self.n_gen, self.n_runs = prompts, n_gen, n_runs
        self.profiles = [{"n_tokens": min(512, *prompts, 512)}] if prompts else []
        self.profiles += [{"n_past": n_gen // 2}] if n_gen else []

    def theirs(self, path: str, mode: Mode, note: Note) -> None:
        assert mode.their_flags is not None, "theirs take part in this mode"
        for what, n, found in speeds(
            path, mode.their_flags, mode.their_env, self.prompts, self.n_gen, self.n_runs
        ):
            note("theirs", what, n, {"tok_per_s": found})

    def ours(self, side: OurSide, note: Note) -> None:
        for n in self.prompts:
            note("ours", "prefill", n, side.ask(prefill=n, runs=self.n_runs))
        if self.n_gen:
            note("ours", "decode", self.n_gen, side.ask(decode=self.n_gen, runs=self.n_runs))


class _Together(_Work):
    """Tokens of several sequences at once, each after a prompt."""

    def __init__(self, n_prompt: int, n_gen: int, counts: Sequence[int], n_runs: int) -> None:
        self.n_prompt, self.n_gen, self.counts, self.n_runs = n_prompt, n_gen, counts, n_runs
        self.profiles = [{"n_seq": n, "n_past": n_prompt + n_gen // 2} for n in counts if n > 1]

    def theirs(self, path: str, mode: Mode, note: Note) -> None:
        assert mode.their_flags is not None, "theirs take part in this mode"
        work = self.n_prompt, self.n_gen, self.counts, self.n_runs
        for n, found in parallel_speeds(path, mode.their_flags, mode.their_env, *work):
            note("theirs", "parallel", n, {"tok_per_s": found})

    def ours(self, side: OurSide, note: Note) -> None:
        for n in self.counts:
            found = side.ask(decode=self.n_gen, parallel=n, prompt=self.n_prompt, runs=self.n_runs)
            note("ours", "parallel", n, found)


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _mode_names(text: str) -> list[str]:
    names = list(mode_table.NAMES) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in mode_table.NAMES]:
        raise argparse.ArgumentTypeError(
            f"{unknown[0]!r}; {', '.join(mode_table.NAMES)} and all are possible"
        )
    return names


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", type=_names, default=_names(MODELS), help="SHAPE:TYPE or files, with commas"
    )
    parser.add_argument(
        "--modes", type=_mode_names, default=list(mode_table.USUAL), help=", ".join(mode_table.NAMES)
    )
    parser.add_argument("--what", type=_names, default=["prefill", "decode", "parallel"],
                        help="prefill, decode, parallel, streams")  # fmt: skip
    parser.add_argument("--device", help="two devices with a comma; default: the first GPUs, else cpu,cpu")
    parser.add_argument("-p", type=_numbers, default=[512, 4096, 16384], help="lengths of prompts")
    parser.add_argument("-n", type=int, default=128, help="tokens to generate")
    parser.add_argument("--parallel", type=_numbers, default=[1, 4, 16], help="numbers of sequences")
    parser.add_argument("--parallel-prompt", type=int, default=512, help="tokens of each one's prompt")
    parser.add_argument("--streams", type=_numbers, default=[4, 16], help="numbers of HTTP clients")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each side")
    parser.add_argument("--repeat", type=int, default=2, help="runs that count in each turn")
    parser.add_argument(
        "--seconds", type=float, default=570, help="begin nothing that would end later than this"
    )
    parser.add_argument("--folder", default="/tmp", help="where synthetic models lie")
    parser.add_argument("--vocab-from", help="a GGUF whose tokenizer synthetic models get")
    parser.add_argument("--layers", type=int, help="layers of synthetic models, for trials")
    parser.add_argument("--threads", type=int, default=gg.default_threads(), help="where the device is a CPU")
    parser.add_argument("--our-options", type=json.loads, default={}, help="more options of our LLM, as JSON")
    parser.add_argument("--profile", action="store_true", help="name our most expensive kernels in each mode")
    parser.add_argument("--ours-only", action="store_true", help="leave llama.cpp out")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    chosen = options()
    cards = [device.name for device in gg.discrete_gpus()]
    devices = chosen.device.split(",") if chosen.device else cards[:2] or ["cpu", "cpu"]
    if len(devices) < 2:
        chosen.modes = [name for name in chosen.modes if name == "one"]
    comparison = Comparison(chosen, devices)
    say(
        devices=devices,
        bandwidth=comparison.bandwidth,
        estimate_s=round(comparison.budget.total(comparison.modes)),
    )
    comparison.run()
    print_report(list(comparison.rows.values()), devices, comparison.bandwidth, comparison.budget.spent_s)


if __name__ == "__main__":
    main()
