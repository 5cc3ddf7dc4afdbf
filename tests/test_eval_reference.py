"""`pyggml eval` beside llama-perplexity: each reads what the other wrote, and both find the same figures."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_calls import call

from pyggml.engine.logprob_file import LogprobFile

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from compare_kl import MODES as MODE_NAMES
from corpus import corpus

BENCH = Path(__file__).resolve().parent.parent / "bench"
Capture = pytest.CaptureFixture[str]
CTX, WINDOWS = 128, 2
N = WINDOWS * 63
MODES = {
    "one device": ("--device", "cpu"),
    "tp 2": ("--device", "cpu,cpu", "--tp", 2),
    "tp 3": ("--device", "cpu,cpu,cpu", "--tp", 3),
    "layer split 2": ("--device", "cpu,cpu", "--layer-split", 2),
}


class Peer:
    """llama-perplexity with one model and text, in windows of CTX tokens."""

    def __init__(self, bin_folder: Path, model: Path, text: Path) -> None:
        self._command = [
            str(bin_folder / "llama-perplexity"), "-m", str(model), "-f", str(text), "-c", str(CTX), "-b", str(CTX),
            "--chunks", str(WINDOWS), "-t", "2",
        ]  # fmt: skip

    def run(self, *options: object) -> str:
        """All that it prints. Its last lines may be missing: a thread writes them, and is not waited for."""
        env = {**os.environ, "OMP_WAIT_POLICY": "passive"}
        command = [*self._command, *map(str, options)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=300)
        return done.stdout + done.stderr

    def distance(self, base: Path, *options: object) -> dict[str, float]:
        """The figures that it prints of its distance from a file."""
        names = {"mean": "Mean    KLD", "maximum": "Maximum KLD", "median": "Median  KLD", "same_top": "Same top p",
                 "perplexity": "Mean PPL(Q)"}  # fmt: skip
        for _ in range(40):
            output = self.run("--kl-divergence-base", base, "--kl-divergence", *options)
            found = {key: re.search(re.escape(name) + r"\s*: *(-?[\d.]+)", output) for key, name in names.items()}
            values = {key: float(match[1]) for key, match in found.items() if match is not None}
            if len(values) == len(names):
                return values
        raise AssertionError(f"llama-perplexity does not print its figures:\n{output[-2000:]}")


def evaluated(capsys: Capture, *arguments: object) -> dict[str, Any]:
    """The JSON of `pyggml eval`."""
    result = call(capsys, "eval", *arguments, "--threads", 2, "--json")
    assert (result.status, result.err) == (0, "")
    document: dict[str, Any] = json.loads(result.out)
    return document


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(corpus()[:6000])
    return path


@pytest.fixture(scope="module")
def bases(
    reference_bin: Path, text: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path, Peer]]:
    """`bases(name)`: a real model, llama.cpp's log-probabilities of it, and llama-perplexity for it; made once."""
    made: dict[str, tuple[Path, Path, Peer]] = {}

    def base(name: str) -> tuple[Path, Path, Peer]:
        if name not in made:
            model: Path = request.getfixturevalue(name)
            peer, path = Peer(reference_bin, model, text), tmp_path_factory.mktemp("base") / "base.logits"
            peer.run("--kl-divergence-base", path)
            made[name] = model, path, peer
        return made[name]

    return base


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "modes"),
    [("smollm2", tuple(MODES)), ("gemma3", ("one device", "tp 2"))],
    ids=["smollm2", "gemma3"],
)
def test_real_models_are_not_further_from_llama_cpp_than_it_is_from_itself(
    name: str, modes: tuple[str, ...], bases: Callable[[str], tuple[Path, Path, Peer]], text: Path, capsys: Capture
) -> None:
    model, base, peer = bases(name)
    floor_file = base.with_name("floor.logits")
    peer.run("--kl-divergence-base", floor_file, "-ub", 32)
    words = ("kl", model, "--base", base, "--file", text)
    document = evaluated(capsys, *words, "--floor", floor_file, *MODES["one device"])
    floor = document["floor"]
    found = {"one device": document["run"]}
    found |= {mode: evaluated(capsys, *words, *MODES[mode])["run"] for mode in modes if mode not in found}
    assert floor["kl"]["mean"] > 1e-4
    for mode, run in found.items():
        assert run["n_positions"] == N
        # of so few positions the mean itself is known to a tenth
        assert run["kl"]["mean"] <= 1.3 * floor["kl"]["mean"], mode
        assert run["same_top"]["mean"] >= 0.9, mode
    if "layer split 2" in found:
        assert found["layer split 2"]["kl"] == found["one device"]["kl"]


@pytest.mark.timeout(300)
def test_both_programs_find_the_same_distance(
    bases: Callable[[str], tuple[Path, Path, Peer]], tmp_path: Path, text: Path, capsys: Capture
) -> None:
    """Of a file with this program's log-probabilities in steps of 32 tokens, from whole windows of each."""
    model, _, peer = bases("smollm2")
    saved = tmp_path / "ours.logits"
    evaluated(
        capsys, "ppl", model, "--file", text, "--ctx", CTX, "--windows", WINDOWS, "--save", saved, "--device", "cpu",
        "--chunk", 32,
    )  # fmt: skip
    theirs = peer.distance(saved)
    ours = evaluated(capsys, "kl", model, "--base", saved, "--device", "cpu")["run"]
    assert theirs["mean"] > 1e-4
    # where both compute the same, the figures are the same but for the rounding of a file
    near = 2e-5 if ours["perplexity"]["value"] == pytest.approx(theirs["perplexity"], abs=1e-5) else theirs["mean"]
    assert ours["kl"]["mean"] == pytest.approx(theirs["mean"], abs=near)
    assert ours["kl"]["median"] == pytest.approx(theirs["median"], abs=near)
    assert ours["kl"]["maximum"] == pytest.approx(theirs["maximum"], abs=10 * near)
    assert 100 * ours["same_top"]["mean"] == pytest.approx(theirs["same_top"], abs=1e-3 if near < 1e-4 else 5)
    assert ours["perplexity"]["value"] == pytest.approx(theirs["perplexity"], rel=0.02)


def test_llama_perplexity_reads_what_is_saved(
    reference_bin: Path, text: Path, tiny: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    model, base = tiny("llama"), tmp_path / "ours.logits"
    ours = evaluated(capsys, "ppl", model, "--file", text, "--ctx", CTX, "--windows", WINDOWS, "--save", base)
    theirs = Peer(reference_bin, model, text).distance(base)
    assert abs(theirs["mean"]) < 1e-4
    assert theirs["same_top"] == 100
    assert theirs["perplexity"] == pytest.approx(ours["perplexity"]["value"], rel=1e-3)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_what_llama_perplexity_saved_is_read(
    arch: str, reference_bin: Path, text: Path, tiny: Callable[..., Path], tmp_path: Path, capsys: Capture
) -> None:
    """Tokens are the same, and so is the file that is written here, but for rounding."""
    model, theirs, ours = tiny(arch), tmp_path / "theirs.logits", tmp_path / "ours.logits"
    Peer(reference_bin, model, text).run("--kl-divergence-base", theirs)
    found = evaluated(capsys, "kl", model, "--base", theirs, "--file", text, "--device", "cpu")["run"]
    assert abs(found["kl"]["mean"]) < 1e-4
    assert found["same_top"]["mean"] == 1
    evaluated(capsys, "ppl", model, "--file", text, "--ctx", CTX, "--windows", WINDOWS, "--save", ours)
    files = LogprobFile(ours), LogprobFile(theirs)
    assert np.array_equal(files[0].tokens, files[1].tokens)
    assert ours.stat().st_size == theirs.stat().st_size
    for window in range(WINDOWS):
        here, there = (file.rows(window) for file in files)
        assert np.abs(here.codes.astype(int) - there.codes).max() <= 8
        np.testing.assert_allclose(here.scale, there.scale, rtol=1e-4)
        np.testing.assert_allclose(here.least, there.least, atol=1e-2)


def test_the_bench_measures_every_mode_once(reference_bin: Path, tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = tiny("llama", quant="Q8_0")
    command = [
        sys.executable, str(BENCH / "compare_kl.py"), str(model), "--folder", str(tmp_path), "--ctx", "64",
        "--windows", "2", "--floors", "64,8",
    ]  # fmt: skip
    env = {**os.environ, "PYGGML_BENCH_REFERENCE": str(reference_bin), "OMP_WAIT_POLICY": "passive"}
    outputs = []
    for _ in range(2):
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=110)
        outputs.append(done.stdout)
    lines = [line.split(" | ") for line in outputs[0].splitlines() if line.startswith("|")]
    runs = ["llama.cpp, micro-batches of 64", "llama.cpp, micro-batches of 8", *MODE_NAMES]
    assert [cells[1] for cells in lines[2:]] == runs
    assert outputs[0] == outputs[1]
    assert done.stderr == "", "nothing was measured again"
    kept = [json.loads(line) for line in (tmp_path / f"{model.stem}-64x2.jsonl").read_text().splitlines()]
    assert [row["key"] for row in kept] == runs
    assert all(row["n_positions"] == 62 and row["mean"] < 0.1 for row in kept)
