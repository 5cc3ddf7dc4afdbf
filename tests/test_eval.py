"""`pyggml eval ppl` and `pyggml eval kl` with tiny models: figures, files, and mistakes."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_calls import Terminal, call

from pyggml.engine import LLM
from pyggml.engine.logprob_file import LogprobFile

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from corpus import corpus

Tiny = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
F32 = ("--cache-type-k", "f32", "--cache-type-v", "f32")
F32_RUN = " ".join(F32)
WORK = ("--ctx", 64, "--windows", 2)
N = 2 * 31


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(corpus()[:3000])
    return path


def told(capsys: Capture, *arguments: object) -> dict[str, Any]:
    """The JSON of a call that went well."""
    result = call(capsys, "eval", *arguments, "--device", "cpu", "--json")
    assert (result.status, result.err) == (0, "")
    document: dict[str, Any] = json.loads(result.out)
    return document


def beside(capsys: Capture, model: Path, text: Path, base_run: str, *options: object) -> dict[str, Any]:
    """The figures of a run beside another run."""
    words = ("kl", model, "--file", text, *WORK, "--base-run", f"--threads 1 {base_run}", "--threads", 1, *options)
    result = call(capsys, "eval", *words, "--json")
    assert (result.status, result.err) == (0, "")
    figures: dict[str, Any] = json.loads(result.out)["run"]
    return figures


def test_perplexity_is_that_of_score(tiny: Tiny, text: Path, capsys: Capture) -> None:
    found = told(capsys, "ppl", tiny("llama"), "--file", text, *WORK, *F32)
    with LLM(tiny("llama"), device="cpu", ctx=64, threads=2, cache_type_k="f32", cache_type_v="f32") as llm:
        bos = [llm.model.tokenizer.bos_id] if llm.model.tokenizer.add_bos else []
        ids = llm.tokenize(text.read_text(), parse_special=False)
        windows = [ids[:64], ids[64:128]]
        logprobs = [llm.score([*bos, *window[len(bos) :]], first=32) for window in windows]
    nll = -np.concatenate(logprobs)
    assert (found["n_positions"], found["n_windows"], found["n_ctx"]) == (N, 2, 64)
    assert found["perplexity"]["value"] == pytest.approx(np.exp(nll.mean()), rel=1e-5)
    assert found["perplexity"]["error"] == pytest.approx(np.exp(nll.mean()) * nll.std() / np.sqrt(N - 1), rel=1e-4)
    assert found["window_perplexities"] == pytest.approx([np.exp(-part.mean()) for part in logprobs], rel=1e-5)


def test_a_saved_run_is_at_no_distance_from_itself(tiny: Tiny, text: Path, tmp_path: Path, capsys: Capture) -> None:
    base = tmp_path / "base.logits"
    first = told(capsys, "ppl", tiny("llama"), "--file", text, *WORK, "--save", base)
    assert first["saved"] == str(base)
    found = told(capsys, "kl", tiny("llama"), "--base", base, "--file", text, "--floor", base)
    for figures in (found["run"], found["floor"]):
        assert (figures["n_positions"], figures["n_identical"], figures["same_top"]["mean"]) == (N, N, 1)
        assert (figures["kl"]["mean"], figures["kl"]["maximum"]) == (0, 0)
    assert found["run"]["perplexity"] == pytest.approx(first["perplexity"], rel=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.logits", "text.txt"]


def test_another_model_is_at_a_distance(tiny: Tiny, text: Path, tmp_path: Path, capsys: Capture) -> None:
    base = tmp_path / "base.logits"
    told(capsys, "ppl", tiny("llama"), "--file", text, *WORK, "--save", base)
    found = told(capsys, "kl", tiny("llama", quant="Q4_0"), "--base", base, "--floor", base)
    assert found["run"]["kl"]["mean"] > 1e-4 > found["floor"]["kl"]["mean"] == 0
    assert found["run"]["n_identical"] == 0
    shown = call(capsys, "eval", "kl", tiny("llama", quant="Q4_0"), "--base", base, "--floor", base).out
    assert "mean KL is ABOVE the floor's" in shown
    assert f"{N} positions in 2 windows of 64 tokens" in shown


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3moe"])
def test_a_layer_split_is_one_device_bit_for_bit(arch: str, tiny: Tiny, text: Path, capsys: Capture) -> None:
    found = beside(capsys, tiny(arch), text, "--device cpu", "--device", "cpu,cpu", "--layer-split", 2)
    assert (found["n_identical"], found["kl"]["maximum"], found["logits"]["largest_distance"]) == (N, 0, 0)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_tensor_parallel_is_near_one_device(n_ranks: int, tiny: Tiny, text: Path, capsys: Capture) -> None:
    devices = ",".join(["cpu"] * n_ranks)
    found = beside(capsys, tiny("llama"), text, f"--device cpu {F32_RUN}", "--device", devices, "--tp", n_ranks, *F32)
    assert found["kl"]["maximum"] < 1e-9
    assert 0 < found["logits"]["relative_l2"] < 1e-5
    assert found["same_top"]["mean"] == 1


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 31])
def test_tokens_evaluated_in_any_number_at_a_time_give_the_same(
    chunk: int, tiny: Tiny, text: Path, capsys: Capture
) -> None:
    found = beside(capsys, tiny("qwen3"), text, f"--device cpu {F32_RUN}", "--device", "cpu", "--chunk", chunk, *F32)
    assert found["kl"]["maximum"] < 1e-9
    assert found["logits"]["relative_l2"] < 1e-5


@pytest.mark.parametrize("chunk", [128, 129])
def test_so_do_wide_chunks(chunk: int, tiny: Tiny, text: Path, capsys: Capture) -> None:
    found = beside(
        capsys, tiny("qwen3"), text, f"--device cpu {F32_RUN}", "--device", "cpu", "--chunk", chunk, *F32,
        "--ctx", 512, "--windows", 1,
    )  # fmt: skip
    assert found["n_positions"] == 255
    assert found["kl"]["maximum"] < 1e-9


def test_a_quantised_cache_is_measured(tiny: Tiny, text: Path, capsys: Capture) -> None:
    options = ("--device", "cpu", "--cache-type-k", "q4_0", "--cache-type-v", "q4_0")
    found = beside(capsys, tiny("llama"), text, "--device cpu", *options)
    assert 1e-9 < found["kl"]["mean"] < 0.1


def test_the_base_may_be_another_file(tiny: Tiny, text: Path, capsys: Capture) -> None:
    found = beside(capsys, tiny("llama", quant="Q8_0"), text, f"{tiny('llama')} --device cpu", "--device", "cpu")
    assert found["kl"]["mean"] > 1e-3
    assert found["base_perplexity"] != found["perplexity"]


def test_positions_are_listed(tiny: Tiny, text: Path, tmp_path: Path, capsys: Capture) -> None:
    table = tmp_path / "positions.csv"
    found = beside(capsys, tiny("llama", quant="Q8_0"), text, str(tiny("llama")), "--positions", table)
    with open(table, newline="") as file:
        rows = list(csv.DictReader(file))
    places = [(int(row["window"]), int(row["position"])) for row in rows]
    assert places == [(window, position) for window in (0, 1) for position in range(32, 63)]
    assert np.mean([float(row["kl"]) for row in rows]) == pytest.approx(found["kl"]["mean"])
    assert np.exp(-np.mean([float(row["logprob"]) for row in rows])) == pytest.approx(found["perplexity"]["value"])
    assert np.mean([int(row["is_same_top"]) for row in rows]) == pytest.approx(found["same_top"]["mean"])
    with LLM(tiny("llama"), device="cpu", ctx=64) as llm:
        ids = llm.tokenize(text.read_text(), parse_special=False)
    assert [int(row["token"]) for row in rows] == [*ids[33:64], *ids[97:128]]


def test_a_bar_is_shown_on_a_terminal(tiny: Tiny, text: Path) -> None:
    words = ("eval", "ppl", tiny("llama"), "--file", text, *WORK, "--device", "cpu", "--threads", 1)
    with Terminal(*words, environment={}, n_columns=100) as terminal:
        terminal.wait_for("evaluating: ")
        terminal.wait_for(r"perplexity +[\d.]+ \+- [\d.]+")
        assert terminal.status() == 0


MISTAKES: tuple[tuple[tuple[object, ...], str], ...] = (
    (("ppl", "{model}"), "--file is missing"),
    (("ppl", "{model}", "--file", "{folder}/none.txt"), "--file {folder}/none.txt: No such file"),
    (("ppl", "{model}", "--file", "{base}"), "the file is not UTF-8"),
    (("ppl", "{model}", "--file", "{text}", "--ctx", "3"), "--ctx is '3': a whole number is needed, at least 4"),
    (("ppl", "{model}", "--file", "{text}", "--ctx", "4000"), "fewer than one window of 4000"),
    (("ppl", "{model}", "--file", "{text}", "--windows", "99"), "and 99 were asked for"),
    (("ppl", "{model}", "--file", "{text}", "--save", "{folder}"), "no file can be written there"),
    (("ppl", "{model}", "--file", "{text}", "--chunk", "600"), "--chunk is 600; with --batch 512"),
    (("kl", "{model}"), "give either --base or --base-run"),
    (("kl", "{model}", "--base", "{base}", "--base-run", "--tp 2"), "give either --base or --base-run"),
    (("kl", "{model}", "--base", "{folder}/none"), "--base: {folder}/none: No such file"),
    (("kl", "{model}", "--base", "{text}"), "--base: {text} is no file of log-probabilities"),
    (("kl", "{model}", "--base", "{short}"), "it was cut off"),
    (("kl", "{other}", "--base", "{base}"), "is of a vocabulary of 320 tokens, {other} has 288"),
    (("kl", "{model}", "--base", "{base}", "--file", "{reversed}"), "are of different tokens: token "),
    (("kl", "{model}", "--base", "{base}", "--floor", "{elsewhere}"), "are of different tokens: token "),
    (("kl", "{model}", "--base", "{base}", "--floor", "{fewer}"), "give --windows 1"),
    (("kl", "{model}", "--base", "{base}", "--windows", "3"), "--windows is 3; {base} has 2"),
    (("kl", "{model}", "--base", "{base}", "--ctx", "128"), "the windows of {base} have 64 tokens"),
    (("kl", "{model}", "--base-run", "--tp 2"), "--base-run needs a text to evaluate: give --file"),
    (("kl", "{model}", "--base-run", "--tp 2", "--file", "{text}", "--floor", "{base}"), "it needs --base"),
    (("kl", "{model}", "--base-run", "--tq 2", "--file", "{text}"), "--base-run: there is no option --tq"),
    (("kl", "{model}", "--base-run", "'", "--file", "{text}"), "--base-run: No closing quotation"),
    (("kl", "{model}", "--base-run", "--ctx 8 --tp 2", "--file", "{text}"), "--base-run: --ctx is for both runs"),
    (("kl", "{model}", "--base-run", "{folder}/none.gguf", "--file", "{text}"), "no model file"),
    (("kl", "{model}", "--base-run", "{other}", "--file", "{text}"), "has a vocabulary of 288 tokens"),
    (("kl", "{model}", "--base", "{base}", "--positions", "{folder}/none/x.csv"), "no file can be written there"),
)


@pytest.fixture
def names(tiny: Tiny, text: Path, tmp_path: Path, capsys: Capture) -> dict[str, Path]:
    """Files that mistakes are made with."""
    found = {"folder": tmp_path, "text": text, "model": tiny("llama"), "other": tiny("llama", n_vocab=288)}
    texts = {"base": text.read_text(), "reversed": text.read_text()[::-1]}
    (tmp_path / "reversed.txt").write_text(texts["reversed"])
    found["reversed"] = tmp_path / "reversed.txt"
    for name, source, n in (("base", text, 2), ("elsewhere", found["reversed"], 2), ("fewer", text, 1)):
        found[name] = tmp_path / f"{name}.logits"
        told(capsys, "ppl", tiny("llama"), "--file", source, "--ctx", 64, "--windows", n, "--save", found[name])
    found["short"] = tmp_path / "short.logits"
    found["short"].write_bytes(found["base"].read_bytes()[:-100])
    return found


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_mistake_is_told_on_one_line_with_status_2(
    arguments: tuple[str, ...], expected: str, names: dict[str, Path], capsys: Capture
) -> None:
    words = [word.format(**names) for word in arguments]
    result = call(capsys, "eval", *words, "--device", "cpu")
    assert (result.status, result.out) == (2, "")
    assert expected.format(**names) in result.err
    assert result.err.count("\n") == 1


def test_the_file_has_the_text_as_it_stands(tiny: Tiny, text: Path, tmp_path: Path, capsys: Capture) -> None:
    text.write_bytes(b"a line\r\n" * 40)
    told(capsys, "ppl", tiny("llama"), "--file", text, "--ctx", 64, "--windows", 1, "--save", tmp_path / "x")
    with LLM(tiny("llama"), device="cpu", ctx=64) as llm:
        ids = llm.tokenize("a line\r\n" * 40, parse_special=False)
    assert LogprobFile(tmp_path / "x").tokens[0].tolist() == ids[:64]
