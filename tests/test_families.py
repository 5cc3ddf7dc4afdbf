"""Every family against llama.cpp's stored logits, and over several ranks against one."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import numpy as np
import pytest
from family_modes import F32, MODES, answered, from_reference, nmse, ranks_of
from stored_logits import PROMPT, StoredCase, stored_cases
from tiny import FAMILIES
from tiny_families import BASE, RECIPES, weights_of, write_family

from pyggml.engine import LLM, ConfigError, ModelError, models, weights
from pyggml.engine.cuts import tp_cuts
from pyggml.engine.loading import model_facts

CASES = [case for arch in RECIPES for case in stored_cases(arch)]
# Shapes with many layers are there for numbers that go with them, and would take long over ranks.
SHAPES = [
    (arch, variant)
    for arch, recipes in RECIPES.items()
    for variant, recipe in recipes.items()
    if recipe.keys.get("block_count", 0) <= 8
]
# GELU looks values up by float16, and many layers add up what is rounded: sums in another order show.
ROUNDED = ("gemma", "gemma2", "gemma4", "starcoder2")
REFUSED = {
    ("olmo2", "", "tp 3"): "tp = 3 for olmo2: K is normed .*; this file works with tp 1, 2, or with --layer-split 3$",
    ("olmo2", "windows", "tp 3"): "; this file works with tp 1, 2, or with --layer-split 3$",
    ("minimax-m2", "", "tp 3"): "tp = 3 for minimax-m2: .*; this file works with tp 1, 2, or with --layer-split 3$",
    (
        "gemma4",
        "small",
        "layer split 2",
    ): "layer-split = 2 for gemma4: .* says of the token in this model; --tp 2 cuts inside layers$",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_llama_cpp_all_at_once_and_token_by_token(case: StoredCase, tmp_path: Path) -> None:
    path = write_family(
        tmp_path / "model.gguf", case.arch, quant=case.quant, variant=case.variant, seed=case.seed
    )
    # Products with F16 weights round activations to F16, where the last bit of a sum decides.
    limit = 1e-6 if case.quant == "F16" else min(1e-6, case.tolerance)
    assert from_reference(path, case, limit=limit) <= limit


@pytest.mark.parametrize(("arch", "variant"), SHAPES)
def test_every_mode_equals_one_rank_or_says_why_not(arch: str, variant: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch, variant=variant)
    right, answers = answered(path)
    for name, mode in MODES.items():
        if (arch, variant, name) in REFUSED:
            with pytest.raises(ConfigError, match=REFUSED[arch, variant, name]):
                answered(path, ranks_of(mode), **mode)
            continue
        logits, ids = answered(path, ranks_of(mode), **mode)
        if "tp" in mode:
            assert nmse(logits, right) <= (1e-6 if arch in ROUNDED else 1e-10), name
        else:
            assert np.array_equal(logits, right), name
        assert ids == answers, name


@pytest.mark.parametrize(
    "arch", [arch for arch, recipes in RECIPES.items() if "expert_count" in recipes[""].keys]
)
def test_experts_dealt_whole_give_the_same(arch: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch)
    right, answers = answered(path)
    logits, ids = answered(path, 2, tp=2, expert_split="experts")
    assert nmse(logits, right) <= 1e-10 and ids == answers


@pytest.mark.parametrize(("arch", "variant"), [("deepseek2", ""), ("deepseek2", "odd"), ("mistral4", "")])
def test_a_rank_with_one_head_of_latent_attention_multiplies_by_quantised_weights(
    arch: str, variant: str, tmp_path: Path
) -> None:
    path = write_family(tmp_path / "model.gguf", arch, quant="Q8_0", variant=variant)
    right, answers = answered(path)
    n_head = RECIPES[arch][variant].keys.get("attention.head_count", BASE["attention.head_count"])
    logits, ids = answered(path, n_head, tp=n_head)
    assert nmse(logits, right) <= 1e-10 and ids == answers


@pytest.mark.parametrize(
    ("arch", "variant"), [*((arch, "") for arch in RECIPES), ("gemma4", "experts"), ("gemma4", "small")]
)
def test_a_pass_makes_the_sums_of_the_plan(arch: str, variant: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch, variant=variant)
    with LLM(path, device="cpu,cpu", tp=2, threads=1, parallel=1, **F32) as llm:
        facts = model_facts(llm.model)
        plan = tp_cuts(facts.hp, facts.rows, facts.types, (1.0, 1.0))
        before = llm.status().n_reduces
        llm.score(PROMPT, logits=True)
        assert llm.status().n_reduces - before == plan.n_reduces


@pytest.mark.parametrize(("arch", "variant"), [*((arch, "") for arch in RECIPES), ("gemma4", "small")])
def test_prompts_in_chunks_give_the_same_answer(arch: str, variant: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", arch, variant=variant)
    answers = []
    for batch in (32, 7):
        with LLM(path, device="cpu", threads=1, parallel=1, batch=batch, **F32) as llm:
            answers.append(llm.generate([list(PROMPT)], temperature=0, max_tokens=6, ignore_eos=True)[0].ids)
    assert answers[0] == answers[1]


def test_rows_that_the_device_cannot_look_up_come_from_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_family(tmp_path / "model.gguf", "gemma4", variant="small")
    right, answers = answered(path)
    monkeypatch.setattr(weights, "_can_look_up", lambda backend, tensor: False)
    logits, ids = answered(path)
    assert np.array_equal(logits, right) and ids == answers


ODD_VALUES = (
    0,
    1,
    -1,
    3,
    2**31,
    2**63,
    1.5,
    -1e9,
    1e39,
    float("nan"),
    float("inf"),
    "x",
    "",
    True,
    [],
    [1, 2],
    ["a"],
)


@pytest.mark.parametrize(("arch", "variant"), [(a, v) for a, recipes in RECIPES.items() for v in recipes])
def test_odd_metadata_is_refused_as_a_fault_of_the_model(arch: str, variant: str) -> None:
    """Every key of every recipe with values of other kinds and sizes, or missing: numbers or a ModelError."""
    found = models.family(arch)
    metadata, _ = weights_of(arch, variant)
    n_refused = 0
    for key, odd in itertools.product([key for key in metadata if "vocab" not in key], (*ODD_VALUES, None)):
        changed = {k: v for k, v in (metadata | {key: odd}).items() if v is not None}
        try:
            hp = found.hparams(changed, arch, 320)
            if hp.n_layer <= 64 and hp.n_expert <= 256:
                assert all(row.name for row in found.table(hp))
        except ModelError:
            n_refused += 1
    assert n_refused > 50


def test_every_architecture_has_stored_logits_of_two_shapes_and_three_types() -> None:
    assert set(models.MODULES) == {*FAMILIES, *RECIPES}
    for arch in RECIPES:
        assert {"F32", "F16", "Q8_0"} <= {case.quant for case in stored_cases(arch)}
        assert len({case.variant for case in stored_cases(arch)}) >= 2
        assert {case.variant for case in stored_cases(arch)} == set(RECIPES[arch])


def test_stored_logits_are_sane() -> None:
    for case in CASES:
        assert 0.5 < case.whole.std() < 10, case.name
        assert case.floor < 1e-6, case.name


def test_family_files_are_thin() -> None:
    folder = Path(models.__file__).parent
    lines = [len(path.read_text().splitlines()) for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert max(lines) <= 200
    assert statistics.median(lines) <= 80
