"""llama.cpp reads the tests' own models as they are meant, and the stored logits are its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from forced import bag_logits, chain_logit, write_bag, write_forced
from llama import Reference, nmse
from stored_logits import PROMPT, ROWS, StoredCase, stored_cases
from tiny import FAMILIES, write_tiny
from tiny_families import RECIPES, write_family

SAMPLED = [case for arch in FAMILIES for case in stored_cases(arch)[::7]]
SAMPLED += [stored_cases(arch)[-1] for arch in RECIPES]


@pytest.mark.parametrize("case", SAMPLED, ids=lambda case: case.name)
def test_the_stored_logits_come_out_again(reference: Reference, tmp_path: Path, case: StoredCase) -> None:
    write = write_family if case.arch in RECIPES else write_tiny
    model = write(tmp_path / "model.gguf", case.arch, quant=case.quant, variant=case.variant, seed=case.seed)
    cache = {"fa": "on" if case.flash else "off", "ctk": case.cache_type, "ctv": case.cache_type}
    rows = ",".join(map(str, ROWS))
    whole, steps = (
        reference.logits(model, PROMPT, rows=rows, chunk=n, **cache)[:, :: case.step]
        for n in (len(PROMPT), 1)
    )
    assert nmse(whole, case.whole) <= case.tolerance
    assert nmse(steps, case.steps) <= case.tolerance


def test_the_chain_says_what_it_was_given(reference: Reference, tmp_path: Path) -> None:
    chain = write_forced(tmp_path / "forced.gguf", "Hello, hello! 你好 👍\n\n")
    ids, gaps = reference.greedy(chain.path, [[10], [72, 105, 10]], len(chain.ids))
    assert ids.tolist() == [list(chain.ids)] * 2
    assert gaps == pytest.approx(chain_logit(512), rel=1e-5)


@pytest.mark.parametrize("tokens", [[1, 2, 3, 4], [5, 9, 5, 5, 300, 2]])
def test_the_bag_counts_what_is_visible(reference: Reference, tmp_path: Path, tokens: list[int]) -> None:
    logits = reference.logits(write_bag(tmp_path / "bag.gguf"), tokens)
    for n in range(1, len(tokens) + 1):
        assert logits[n - 1] == pytest.approx(bag_logits(tokens[:n], 512, 512), abs=1e-4)
        assert np.count_nonzero(logits[n - 1]) == len(set(tokens[:n]))


def test_prompts_take_merges_and_control_tokens(reference: Reference, tmp_path: Path) -> None:
    chain = write_forced(tmp_path / "forced.gguf", ["Yes"])
    ids = reference.tokenize(chain.path, "<|im_start|>user\nis the\n", add_bos=False)
    user = [chain.vocab.id_of(piece) for piece in ("u", "s", "er")]
    assert ids == [257, *user, 10, chain.vocab.id_of("is"), chain.vocab.id_of(" the"), 10]
