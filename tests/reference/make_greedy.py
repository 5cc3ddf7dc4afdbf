#!/usr/bin/env python3
"""Store llama.cpp's greedy continuations by the real models' F32 copies in tests/golden/greedy_<model>.npz.

    python tests/reference/make_greedy.py [smollm2] [gemma3]

Needs the reference build and the models' packages. 64 tokens for each of 20 plain prompts, F32 K and V, no flash
attention, with the gap between the two best logits at each step: an engine may differ only where the gap is tiny.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from f32_copy import f32_copy
from llama import Reference
from make_real_logits import MODELS
from prompts import GREEDY
from stored_logits import FOLDER

N_TOKENS = 64


def store(reference: Reference, name: str) -> None:
    """Make one model's file."""
    place, has_bos = MODELS[name]
    model = place()
    prompts = [reference.tokenize(model, text, add_bos=has_bos) for text in GREEDY]
    ids, gaps = reference.greedy(f32_copy(reference, model), prompts, N_TOKENS)
    described = [{"text": text, "ids": prompt} for text, prompt in zip(GREEDY, prompts, strict=True)]
    print(
        name, ids.shape, f"smallest gap {gaps.min():.3g}, {np.mean(gaps < 1e-3):.2%} below 1e-3", flush=True
    )
    np.savez_compressed(
        FOLDER / f"greedy_{name}.npz",
        allow_pickle=False,
        prompts=np.frombuffer(json.dumps(described).encode(), np.uint8),
        ids=ids,
        gaps=gaps,
    )


if __name__ == "__main__":
    for chosen in sys.argv[1:] or MODELS:
        store(Reference.found(), chosen)
