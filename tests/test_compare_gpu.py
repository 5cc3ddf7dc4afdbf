"""`bench/compare_gpu.py` on the CPU with a tiny model, and the targets that it judges by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from modes import modes
from targets import Goal, Row, goals

BENCH = Path(__file__).resolve().parent.parent / "bench"
WORK = (
    "-p",
    "16,40",
    "-n",
    "4",
    "--parallel",
    "1,3",
    "--parallel-prompt",
    "8",
    "--rounds",
    "2",
    "--repeat",
    "2",
)


def compared(reference_bin: Path, *options: str) -> list[dict[str, object]]:
    """The lines of JSON that the program prints."""
    command = [
        sys.executable,
        str(BENCH / "compare_gpu.py"),
        "--device",
        "cpu,cpu",
        "--threads",
        "1",
        *WORK,
        *options,
    ]
    env = {**os.environ, "PYGGML_BENCH_REFERENCE": str(reference_bin)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=110)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_both_sides_are_measured_in_turns(reference_bin: Path, tiny: Callable[..., Path]) -> None:
    lines = compared(reference_bin, "--models", str(tiny("llama", quant="Q8_0")))
    rows = {(r["mode"], r["what"], r["n"]): r for r in lines[-1]["rows"]}  # type: ignore[attr-defined]
    kinds = [("prefill", 16), ("prefill", 40), ("decode", 4), ("parallel", 1), ("parallel", 3)]
    assert list(rows) == [(mode, *kind) for mode in ("one", "tp 2", "layer 2") for kind in kinds]
    for (mode, what, _), row in rows.items():
        assert len(row["our_runs"]) == 4 and row["ours"] > 0
        assert len(row["their_runs"]) == (4 if mode == "one" else 0)
        assert (row["ceiling"] is None) == (what == "prefill")
        if mode == "one":
            assert row["ratio"] == pytest.approx(row["ours"] / row["theirs"])
    order = [
        line["sample"][4] for line in lines if "sample" in line and line["sample"][1:3] == ["one", "decode"]
    ]  # type: ignore[index]
    assert order == ["theirs", "ours"] * 2
    assert [line["row"] for line in lines if "row" in line] == lines[-1]["rows"]


def test_a_side_that_fails_leaves_the_other(reference_bin: Path, tiny: Callable[..., Path]) -> None:
    options = ("--models", str(tiny("llama")), "--modes", "one", "--what", "decode")
    lines = compared(reference_bin, *options, "--our-options", '{"cache_type_k": "q9"}')
    (failure,) = [line for line in lines if "failed" in line]
    assert failure["failed"] == [str(tiny("llama")), "one", "ours"] and "q9" in str(failure["why"])
    (row,) = lines[-1]["rows"]  # type: ignore[misc]
    assert row["ours"] is None and row["theirs"] > 0  # type: ignore[index]


def test_servers_are_compared_over_http(reference_bin: Path, tiny: Callable[..., Path]) -> None:
    options = ("--modes", "one", "--what", "streams", "--streams", "1,2", "--rounds", "1")
    lines = compared(reference_bin, "--models", str(tiny("llama")), *options)
    assert [line for line in lines if "failed" in line] == []
    rows = lines[-1]["rows"]
    assert [(row["what"], row["n"]) for row in rows] == [("streams", 1), ("streams", 2)]  # type: ignore[attr-defined]
    assert all(row["ratio"] > 0 for row in rows)  # type: ignore[attr-defined]


def test_a_profile_of_each_kind_of_step_is_shown(reference_bin: Path, tiny: Callable[..., Path]) -> None:
    options = ("--modes", "one", "--rounds", "1", "--ours-only", "--profile")
    lines = compared(reference_bin, "--models", str(tiny("llama")), *options)
    steps = [(line["phase"], line["parallel"], line["n_tokens"]) for line in lines if "profile" in line]
    assert steps == [("prefill", 1, 40), ("decode", 1, 1), ("decode", 3, 1)]
    assert all(row["their_runs"] == [] for row in lines[-1]["rows"])  # type: ignore[attr-defined]


def test_without_llama_cpp_ours_is_measured_alone(tmp_path: Path, tiny: Callable[..., Path]) -> None:
    lines = compared(
        tmp_path, "--models", str(tiny("llama")), "--modes", "one", "--what", "decode", "--rounds", "1"
    )
    (failure,) = [line for line in lines if "failed" in line]
    assert failure["failed"] == [str(tiny("llama")), "one", "theirs"]
    assert failure["why"] == f"{tmp_path / 'llama-bench'} does not exist"
    (row,) = lines[-1]["rows"]  # type: ignore[misc]
    assert row["ours"] > 0 and row["theirs"] is None  # type: ignore[index]


def test_what_would_end_too_late_is_not_begun(reference_bin: Path, tiny: Callable[..., Path]) -> None:
    lines = compared(reference_bin, "--models", str(tiny("llama")), "--modes", "one", "--seconds", "1")
    assert [line["skipped"] for line in lines if "skipped" in line] == [[str(tiny("llama")), "one"]]
    assert lines[-1]["rows"] == []


def test_llama_cpp_gets_the_same_restriction_as_we_do() -> None:
    found = {
        mode.name: mode
        for mode in modes(("tp", "tp:nccl-shm", "tp:push-shm", "tp:host", "layer:host"), ["cuda:1", "cuda:3"], 1)
    }
    free, shm, push, host, layers = found.values()
    assert free.their_env == {"CUDA_VISIBLE_DEVICES": "1,3", "GGML_CUDA_P2P": "1"} and free.our_env == {}
    for mode in (shm, push, host, layers):
        assert "GGML_CUDA_P2P" not in mode.their_env and mode.their_env["NCCL_P2P_DISABLE"] == "1"
        assert mode.our_env == {"PYGGML_P2P": "0"}
    assert [mode.ours["transport"] for mode in (shm, push, host)] == ["nccl-shm", "push-shm", "host"]
    assert push.their_env["GGML_CUDA_ALLREDUCE"] == host.their_env["GGML_CUDA_ALLREDUCE"] == "internal"
    assert [mode.their_flags[-1] for mode in found.values() if mode.their_flags] == ["tensor"] * 4 + ["layer"]


def row(mode: str, what: str, n: int, ours: float, theirs: float, model: str = "llama-8b:q8_0") -> Row:
    return Row(model, mode, what, n, [ours], [theirs], python_share=0.03 if what == "decode" else None)


def test_targets_are_judged_by_their_own_rows() -> None:
    rows = [
        row("one", "decode", 128, 300, 250),
        row("tp 2", "decode", 128, 390, 260),
        row("one", "prefill", 16384, 100, 100),
        row("layer 2", "prefill", 16384, 180, 200),
        row("one", "parallel", 4, 900, 800),
        row("tp 2", "parallel", 4, 800, 400),
    ]
    found = {goal.name.split(": ", 1)[1]: (round(goal.value, 2), goal.verdict) for goal in goals(rows)}
    assert found == {
        "decode 128, ours / llama.cpp": (1.5, "first"),
        "prefill 16384, ours / llama.cpp": (0.9, "missed"),
        "4 sequences, best / best": (1.12, "missed"),
        "decode 128, our tp 2 / our one GPU": (1.3, "missed"),
        "prefill 16384, our layer 2 / our one GPU": (1.8, "missed"),
        "Python's share of a decode step, the worst mode": (0.03, "first"),
    }
    assert row("tp 2", "decode", 128, 1, 1, "llama-70b:q4_k").target == (1.15, 1.5)


@pytest.mark.parametrize(
    ("value", "at_most", "verdict"),
    [
        (1.0, False, "first"),
        (2.0, False, "then"),
        (0.9, False, "missed"),
        (1.0, True, "then"),
        (2.0, True, "first"),
        (2.1, True, "missed"),
    ],
)
def test_a_verdict_names_the_value_that_is_reached(value: float, at_most: bool, verdict: str) -> None:
    first, then = (2.0, 1.0) if at_most else (1.0, 2.0)
    assert Goal("", value, first, then, at_most).verdict == verdict
