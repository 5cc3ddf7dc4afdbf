#!/usr/bin/env python3
"""Store llama.cpp's logits for the two real models in tests/golden/real_<model>.npz.

    python tests/reference/make_real_logits.py [smollm2] [gemma3]

Needs the reference build and the models' packages. Each model is measured as it is and as an F32 copy, with F32 K
and V without flash attention, and with F16 K and V with it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from f32_copy import f32_copy
from llama import Reference, nmse, nudge
from places import cache_folder, gemma3_file, smollm2_file
from prompts import PASSAGE
from stored_logits import FOLDER, real_columns, real_rows

MODELS: dict[str, tuple[Callable[[], Path], bool]] = {
    "smollm2": (smollm2_file, False),
    "gemma3": (gemma3_file, True),
}
CACHES: dict[str, dict[str, object]] = {
    "f32": {"fa": "off", "ctk": "f32", "ctv": "f32"},
    "f16": {"fa": "on", "ctk": "f16", "ctv": "f16"},
}


def summary(logits: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
    """What is kept of all logits: some columns of some rows, those rows' sizes, and every row's best token."""
    rows = logits[real_rows(len(logits))].astype(np.float64)
    return {
        f"{prefix}/logits": rows[:, real_columns(logits.shape[1])].astype(np.float32),
        f"{prefix}/norms": np.sqrt(np.square(rows).sum(axis=1)),
        f"{prefix}/best": logits.argmax(axis=1).astype(np.int32),
    }


def measure(
    reference: Reference, model: Path, tokens: list[int], options: dict[str, object], prefix: str
) -> dict[str, np.ndarray]:
    """Summaries all at once and step by step, and how far llama.cpp moves from itself between and within them."""
    whole = reference.logits(model, tokens, **options)
    steps = reference.logits(model, tokens, chunk=1, **options)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        nudged = Path(folder, "nudged.gguf")
        nudge(model, nudged)
        moved = reference.logits(nudged, tokens, **options)
    facts = {
        "steps_nmse": nmse(steps, whole),
        "nudged_nmse": nmse(moved, whole),
        "steps_flips": float(np.mean(steps.argmax(1) != whole.argmax(1))),
        "nudged_flips": float(np.mean(moved.argmax(1) != whole.argmax(1))),
    }
    print(prefix, facts, flush=True)
    kept = {**summary(whole, f"{prefix}/whole"), **summary(steps, f"{prefix}/steps")}
    return {**kept, f"{prefix}/facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}


def store(reference: Reference, name: str) -> None:
    """Make one model's file."""
    place, has_bos = MODELS[name]
    model = place()
    tokens = reference.tokenize(model, PASSAGE, add_bos=has_bos)
    arrays = {"tokens": np.array(tokens, np.int32)}
    for weights, path in (("original", model), ("F32", f32_copy(reference, model))):
        for cache, options in CACHES.items():
            arrays |= measure(reference, path, tokens, options, f"{weights}/{cache}")
    np.savez_compressed(FOLDER / f"real_{name}.npz", allow_pickle=False, **arrays)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        store(Reference.found(), chosen)
