#!/usr/bin/env python3
"""Make F32 copies of the two real models in the cache, with llama.cpp's own converter, and print their paths.

    python tests/reference/f32_copy.py

Products of F32 weights do not round activations, so the copies allow comparisons that the quantised originals do not:
1e-12 for SmolLM2, and 1e-7 for Gemma, whose GELU goes through a half-precision table.
"""

from __future__ import annotations

import os
from pathlib import Path

from llama import Reference
from places import cache_folder, gemma3_file, smollm2_file


def f32_copy(reference: Reference, model: Path) -> Path:
    """The F32 copy of a model, made if it is not in the cache."""
    target = cache_folder() / "f32" / f"{model.stem}-F32.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{os.getpid()}-{target.name}")
        reference.convert(model, partial, "F32")
        os.replace(partial, target)
    return target


if __name__ == "__main__":
    for place in (smollm2_file, gemma3_file):
        print(f32_copy(Reference.found(), place()))
