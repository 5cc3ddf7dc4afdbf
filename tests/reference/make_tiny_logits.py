#!/usr/bin/env python3
"""Store llama.cpp's logits for tiny models of every family in tests/golden/tiny_<family>.npz.

    python tests/reference/make_tiny_logits.py [FAMILY...]

Needs the reference build. Quantised matrix products round activations to 8 bits (F16 and GELU to 11): where one lies
on the edge between two values, the last bit of a sum decides, and two right programs differ by 1e-5. So seeds are
tried until a model has no such edge: llama.cpp then agrees with itself to 1e-10 whichever way it is run.
Where none is found (F16 caches, GELU in seven layers), the case's `floor` tells.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from llama import Reference, nmse, nudge
from stored_logits import FOLDER, PROMPT, ROWS
from tiny import FAMILIES, QUANTS, write_tiny
from tiny_families import RECIPES, write_family

GOAL = 1e-10
# After so many seeds a floor of 1e-8 will do, after so many the best is taken.
ENOUGH_SEEDS, MAX_SEEDS = 15, 40
VARIANT_CASES = {
    "llama": [
        *(
            (variant, quant)
            for variant in ("tied", "bias", "rope_freqs", "linear", "yarn", "wide_head")
            for quant in ("F32", "Q8_0")
        ),
        *(("moe", quant) for quant in ("F32", "F16", "Q8_0", "Q4_0", "Q4_K", "MXFP4", "mixed")),
    ],
    "qwen2": [("tied", "F32"), ("yarn", "F32")],
    "qwen3": [("tied", "F32"), ("yarn", "F32")],
    "qwen3moe": [("yarn", "F32")],
    "gemma3": [("linear", "F32")],
}
CACHE_TYPES = ("f16", "bf16", "q8_0", "q4_0")
# The other families: fewer types, every fourth column, and the best of few seeds.
FAMILY_QUANTS = ("F32", "F16", "Q8_0")
FAMILY_STEP, FAMILY_SEEDS, FAMILY_GOAL = 4, 12, 1e-9


@dataclass(frozen=True)
class Case:
    """One model and cache to store logits for."""

    arch: str
    variant: str
    quant: str
    flash: bool = False
    cache_type: str = "f32"


@dataclass(frozen=True)
class Measured:
    """Logits of ROWS, all at once and step by step, and how far llama.cpp moves from itself."""

    whole: np.ndarray
    steps: np.ndarray
    floor: float


def measure(reference: Reference, model: Path, case: Case, give_up_at: float) -> Measured:
    """Logits all at once and step by step, and how far llama.cpp moves from itself; stops early above `give_up_at`."""
    options: dict[str, object] = {"rows": ",".join(map(str, ROWS)), "threads": 1}
    options |= {"fa": "on" if case.flash else "off", "ctk": case.cache_type, "ctv": case.cache_type}
    nudged = model.with_suffix(".nudged")
    nudge(model, nudged)
    whole = reference.logits(model, PROMPT, **options)
    steps = reference.logits(model, PROMPT, chunk=1, **options)
    changed: list[tuple[Path, dict[str, object], np.ndarray]] = [
        (nudged, {}, whole),
        (nudged, {"chunk": 1}, steps),
        (model, {"repack": "off"}, whole),
        (model, {"repack": "off", "chunk": 1}, steps),
        (model, {"chunk": 7}, whole),
        (model, {"threads": 2}, whole),
    ]
    floor = 0.0
    for other, changes, right in changed:
        floor = max(floor, nmse(reference.logits(other, PROMPT, **(options | changes)), right))
        if floor > give_up_at:
            break
    return Measured(whole, steps, floor)


def best_seed(reference: Reference, folder: Path, case: Case) -> tuple[int, Measured]:
    """The first seed whose floor is low enough, or else the best of all."""
    best_seed, best = -1, None
    is_other = case.arch in RECIPES
    write, max_seeds = (write_family, FAMILY_SEEDS) if is_other else (write_tiny, MAX_SEEDS)
    for seed in range(max_seeds):
        model = write(folder / "model.gguf", case.arch, quant=case.quant, variant=case.variant, seed=seed)
        measured = measure(reference, model, case, best.floor if best else np.inf)
        if best is None or measured.floor < best.floor:
            best_seed, best = seed, measured
        if best.floor <= (FAMILY_GOAL if is_other else GOAL if seed < ENOUGH_SEEDS else 1e-8):
            break
    assert best is not None
    return best_seed, best


def cases_of(arch: str) -> list[Case]:
    """What to store for a family."""
    if arch in RECIPES:
        others = [variant for variant in RECIPES[arch] if variant]
        return [Case(arch, "", q) for q in FAMILY_QUANTS] + [Case(arch, variant, "F32") for variant in others]
    cases = [Case(arch, "", quant) for quant in QUANTS]
    cases += [Case(arch, variant, quant) for variant, quant in VARIANT_CASES[arch]]
    if arch in ("llama", "qwen3", "gemma3"):
        cases += [Case(arch, "", quant, True, kind) for quant in ("F32", "Q8_0") for kind in CACHE_TYPES]
    return cases


def store(reference: Reference, arch: str) -> None:
    """Make one family's file."""
    arrays: dict[str, np.ndarray] = {}
    described = []
    step = FAMILY_STEP if arch in RECIPES else 1
    with tempfile.TemporaryDirectory() as folder:
        for i, case in enumerate(cases_of(arch)):
            seed, measured = best_seed(reference, Path(folder), case)
            apart = nmse(measured.steps, measured.whole)
            steps = "whole" if apart <= GOAL else "steps"
            described.append({**asdict(case), "seed": seed, "floor": measured.floor, "step": step, "steps": steps})
            arrays |= {f"{i}/{name}": getattr(measured, name)[:, ::step] for name in ("whole", steps)}
            print(*described[-1].values(), f"whole/steps {apart:.1e}", flush=True)
    arrays["cases"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / f"tiny_{arch}.npz", allow_pickle=False, **arrays)


def main() -> None:
    reference = Reference.found()
    for arch in sys.argv[1:] or [*FAMILIES, *RECIPES]:
        store(reference, arch)


if __name__ == "__main__":
    main()
