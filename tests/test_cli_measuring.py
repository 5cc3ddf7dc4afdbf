"""`pyggml bench` and `pyggml eval logits`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cli_calls import call

from pyggml.engine import LLM


def test_bench_ends_with_one_line_of_json(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("-p", "16,40", "-n", 4, "--parallel", "1,3", "--repeat", 2)
    result = call(capsys, "bench", tiny("llama"), *options, "--json")
    assert result.status == 0
    document = json.loads(result.out.splitlines()[-1])
    assert [test["n_prompt"] for test in document["prefill"]] == [16, 40]
    assert [(test["parallel"], test["n_gen"]) for test in document["decode"]] == [(1, 4), (3, 4)]
    for test in document["prefill"] + document["decode"]:
        assert len(test["runs_tok_per_s"]) == 2
        assert min(test["runs_tok_per_s"]) <= test["tok_per_s"] <= max(test["runs_tok_per_s"])
    assert all(0 <= test["python_share"] <= 1 for test in document["decode"])
    assert all(test["ceiling_tok_per_s"] > 0 and test["replays"].keys() == {"off"} for test in document["decode"])
    assert document["load_s"] > 0
    assert (document["sums_s"], document["profile"]) == ({}, [])


def test_bench_shows_a_table(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "bench", tiny("llama"), "-p", 16, "-n", 4, "--repeat", 1).out.splitlines()
    tests = [line.split()[:3] for line in lines if line.startswith(("prefill", "decode"))]
    assert tests == [["prefill", "16", "1"], ["decode", "4", "1"]]


def test_a_profile_names_the_ten_most_expensive_nodes_of_each_step(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = (
        "-p",
        "16,40",
        "-n",
        4,
        "--parallel",
        "1,2",
        "--repeat",
        1,
        "--profile",
        "--device",
        "cpu,cpu",
        "--tp",
        2,
    )
    result = call(capsys, "bench", tiny("llama"), *options, "--threads", 1, "--json")
    *lines, last = result.out.splitlines()
    document = json.loads(last)
    steps = [(step["phase"], step["n_tokens"], step["parallel"]) for step in document["profile"]]
    assert steps == [("prefill", 40, 1), ("decode", 1, 1), ("decode", 1, 2)]
    for step in document["profile"]:
        assert step["way"] == "nodes" and len(step["works"]) == 10
        assert sum(work["share"] for work in step["works"]) <= 1.001
        for work in step["works"]:
            assert any(
                line.endswith(work["name"]) and f"{100 * work['share']:.1f} %" in line for line in lines
            )
    assert any(line.startswith("decode step of 2 sequences in a window of 256: ") for line in lines)
    assert any(line.startswith("sum over ranks  ") for line in lines)
    assert not [line for line in lines if "recorded" in line]  # which only CUDA cards can


def test_a_prompt_may_fill_the_context(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, "bench", tiny("llama"), "-p", 64, "--ctx", 64, "-n", 2, "--repeat", 1)
    assert (result.status, result.err) == (0, "")


def test_all_modes_are_compared_and_the_winners_named(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny("llama")
    options = ("-p", "16,40", "-n", 4, "--parallel", "1,3", "--repeat", 1, "--threads", 1)
    result = call(capsys, "bench", path, "--modes", "all", "--device", "cpu,cpu,cpu", *options, "--json")
    document = json.loads(result.out.splitlines()[-1])
    names = ["--device cpu", "--device cpu,cpu --tp 2", "--device cpu,cpu,cpu --tp 3",
             "--device cpu,cpu,cpu --layer-split 3"]  # fmt: skip
    assert [mode["options"] for mode in document["modes"]] == names
    assert [len(mode["plan"]) for mode in document["modes"][:3]] == [1, 2, 3]
    refused = document["modes"][3]
    assert refused["refusal"] == "layer-split = 3; the model has 2 layers, so 2 devices at most"
    assert result.err == f"pyggml bench: {names[3]}: {refused['refusal']}\n"
    tests = {"chat": ("decode", 0), "long prompts": ("prefill", 1), "many at once": ("decode", 1)}
    assert document["winners"].keys() == tests.keys()
    for use, (kind, at) in tests.items():
        speeds = {mode["options"]: mode[kind][at]["tok_per_s"] for mode in document["modes"][:3]}
        best = max(speeds, key=lambda name: speeds[name])
        win = document["winners"][use]
        assert (win["options"], win["tok_per_s"]) == (best, speeds[best])
        assert win["command"] == f"pyggml run {path} {best}"
        assert f"{win['command']}  (" in result.out
    rows = [line.split() for line in result.out.splitlines()]
    assert ["options", "prefill", "16", "prefill", "40", "decode", "x", "1", "decode", "x", "3"] in rows
    assert [*names[3].split(), *["refused"] * 4] in rows


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "compares two or more devices, and there is no GPU; list them, as in --device cpu,cpu"),
        (("--device", "cpu"), "there is cpu; list them, as in --device cpu,cpu"),
        (("--device", "cpu,cpu", "--tp", 2), "--modes all chooses the modes itself; leave --tp away"),
        (("--device", "cpu,cuda:77"), "no device 'cuda:77'"),
    ],
    ids=str,
)
def test_modes_need_devices_and_no_mode(
    options: tuple[str, ...], expected: str, tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("pyggml.discrete_gpus", list)
    result = call(capsys, "bench", tiny("llama"), "--modes", "all", *options)
    assert (result.status, result.out) == (2, "")
    assert expected in result.err


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_logits_are_those_of_score(
    chunk: int | None, tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "l.npy"
    more = [] if chunk is None else ["--chunk", chunk]
    result = call(
        capsys, "eval", "logits", tiny("llama"), "--tokens", "5,6,7,8,9", "--cache-type-k", "f32",
        "--cache-type-v", "f32", "--out", out, "--json", *more,
    )  # fmt: skip
    assert (result.status, result.err) == (0, "")
    with LLM(tiny("llama"), ctx=64, threads=2, cache_type_k="f32", cache_type_v="f32") as llm:
        expected = llm.score([5, 6, 7, 8, 9], logits=True)
    stored = np.load(out)
    assert stored.dtype == np.float32
    np.testing.assert_allclose(stored, expected, atol=1e-4)
    summary = json.loads(result.out)
    assert (summary["n_tokens"], summary["n_vocab"], summary["n_not_finite"]) == (5, 320, 0)
    assert summary["last_argmax"] == expected[-1].argmax()


def test_a_text_is_tokenized(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "eval", "logits", tiny("llama"), "--text", "xyz", "--out", tmp_path / "l.npy")
    assert result.status == 0
    assert "float32 [3, 320]" in result.out
    assert [path.name for path in tmp_path.iterdir()] == ["l.npy"]
