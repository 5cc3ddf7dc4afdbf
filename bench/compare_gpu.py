#!/usr/bin/env python3
"""pyggml beside llama.cpp on the same files in one run: prefill, decode and parallel sequences on one and two GPUs.

usage: compare_gpu.py [--models llama-8b:q8_0,...] [--modes one,tp,layer] [--what prefill,decode,parallel] [...]

A model is SHAPE:TYPE (written by synthetic_model.py into --folder if absent) or a file. For each model and mode the two
take turns for --rounds of --repeat runs each, after a cold run that is left out; medians are compared.
A mode with a colon (tp:push-shm, tp:nccl-shm, tp:host, layer:host) is for cards without peer access, for both sides.
Every sample and every finished row is a line of JSON at once; at the end come a table, the targets, and one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import modes as mode_table
from estimate import Budget
from modes import Mode
from our_side import OurError, OurSide
from peer import PeerError
from report import print_report
from servers import stream_speeds
from synthetic_model import SHAPES, write
from targets import Row
from work import Alone, Note, Together, Work

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
        path = self._place(name)
        if not path.exists():
            start = time.perf_counter()
            write(shape, kind, str(path), n_layer=self.options.layers, vocab_from=self.options.vocab_from)
            say(wrote=str(path), seconds=round(time.perf_counter() - start, 1))
        return str(path)

    def _place(self, name: str) -> Path:
        """Where a shape's file lies or will lie."""
        return Path(self.options.folder) / f"{name.replace(':', '-', 1)}.gguf"

    def run(self) -> None:
        """Measure all models in all modes, as far as the budget goes."""
        for name in self.options.models:
            had = name.partition(":")[0] not in SHAPES or self._place(name).exists()
            path = self.model_file(name)
            self._measure_modes(name, path)
            if self.options.remove and not had:
                Path(path).unlink()

    def _measure_modes(self, name: str, path: str) -> None:
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
        o = self.options
        if "prefill" in o.what or "decode" in o.what:
            alone = Alone(o.p if "prefill" in o.what else [], o.n if "decode" in o.what else 0)
            self._turns(name, path, mode, alone)
        if "parallel" in o.what:
            self._turns(name, path, mode, Together(o.parallel_prompt, o.n, o.parallel))
        if "streams" in o.what:
            self._streams(name, path, mode)
        for (model, mode_name, *_), row in self.rows.items():
            if (model, mode_name) == (name, mode.name):
                say(row=row.document())

    def _streams(self, name: str, path: str, mode: Mode) -> None:
        """Both servers and HTTP clients."""
        o = self.options
        found = stream_speeds(
            path, mode, o.streams, o.parallel_prompt, o.n, o.rounds * o.repeat, ours_only=o.ours_only
        )
        try:
            for side, n, medians in found:
                self._note(name, path, mode, side, "streams", n, {"tok_per_s": medians})
        except PeerError as error:
            say(failed=[name, mode.name, "streams"], why=str(error))

    def _turns(self, name: str, path: str, mode: Mode, work: Work) -> None:
        """Rounds of theirs and ours by turns, each alone on the devices; a side that fails is noted and left out."""
        o = self.options

        def note(side: str, what: str, n: int, found: dict[str, Any]) -> None:
            self._note(name, path, mode, side, what, n, found)

        sides = ["ours"] if mode.their_flags is None or o.ours_only else ["theirs", "ours"]
        for round in range(o.rounds):
            for side in list(sides):
                try:
                    if side == "theirs":
                        work.theirs(path, mode, o.repeat, note)
                    else:
                        self._our_turn(name, path, mode, work, note, is_last=round == o.rounds - 1)
                except (PeerError, OurError) as error:
                    say(failed=[name, mode.name, side], why=str(error))
                    sides.remove(side)

    def _our_turn(self, name: str, path: str, mode: Mode, work: Work, note: Note, *, is_last: bool) -> None:
        with OurSide(path, {**mode.ours, **work.room, **self.options.our_options}, mode.our_env) as ours:
            say(opened=[name, mode.name], load_s=ours.opened["load_s"], notes=ours.opened["notes"])
            work.ours(ours, self.options.repeat, 1, note)
            if is_last and self.options.profile:
                self._profiles(name, mode, ours, work)

    def _profiles(self, name: str, mode: Mode, ours: OurSide, work: Work) -> None:
        for step in work.profiles:
            try:
                found = ours.ask(profile=step)
            except OurError as error:
                say(failed=[name, mode.name, "profile"], why=str(error))
                return
            say(profile=[name, mode.name], **found)
            print("\n".join(["", *profile_lines(found), ""]), flush=True)

    def _note(
        self, name: str, path: str, mode: Mode, side: str, what: str, n: int, found: dict[str, Any]
    ) -> None:
        """Keep what one turn measured, and print it."""
        key = name, mode.name, what, n
        row = self.rows.get(key)
        if row is None:
            label = name if name.partition(":")[0] in SHAPES else Path(name).name
            row = self.rows[key] = Row(label, mode.name, what, n, [], [], note=mode.note)
            if what != "prefill":
                row.ceiling = self._ceiling(path, mode, what, n)
        (row.ours if side == "ours" else row.theirs).extend(found["tok_per_s"])
        if "python_share" in found:
            row.python_share = median(found["python_share"])
        say(sample=[row.model, mode.name, what, n, side], **found)

    def _ceiling(self, path: str, mode: Mode, what: str, n: int) -> float:
        """Tokens a second that memory allows."""
        n_kv = self.options.n // 2 + (0 if what == "decode" else self.options.parallel_prompt)
        n_seq = n if what != "decode" else 1
        model = Model(path)
        n_bytes = step_bytes(model, n_seq, n_kv)
        model.close()
        return n_seq * self.bandwidth * mode.reads_at_once / n_bytes


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
    parser.add_argument("--repeat", type=int, default=2, help="runs in each turn")
    parser.add_argument(
        "--seconds", type=float, default=570, help="begin nothing that would end later than this"
    )
    parser.add_argument("--folder", default="/tmp", help="where synthetic models lie")
    parser.add_argument(
        "--remove", action="store_true", help="delete a synthetic model that was written, once it is measured"
    )
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
