"""The model families, by the architecture name in the file."""

from __future__ import annotations

import importlib

from ..errors import UnsupportedArchitecture
from .family import Family

# architecture -> module of this package that has it in its FAMILIES
MODULES = {"llama": "llama", "qwen2": "llama", "qwen3": "llama", "qwen3moe": "llama", "gemma3": "gemma"}


def family(arch: str) -> Family:
    """The family of an architecture.

    Raises UnsupportedArchitecture with the names that exist.
    """
    if arch not in MODULES:
        raise UnsupportedArchitecture(f"architecture {arch!r}; supported are {', '.join(sorted(MODULES))}")
    module = importlib.import_module(f".{MODULES[arch]}", __name__)
    found: Family = module.FAMILIES[arch]
    return found
