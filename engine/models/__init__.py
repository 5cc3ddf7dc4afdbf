"""The model families, by the architecture name in the file."""

from __future__ import annotations

import importlib

from ..errors import UnsupportedArchitecture
from .family import Family

# module of this package -> the architectures in its FAMILIES
_ARCHITECTURES = {
    "llama": "llama qwen2 qwen3 qwen3moe mistral3 smollm3 internlm2 phi3 hunyuan-dense seed_oss",
    "granite": "granite granitemoe",
    "gemma": "gemma gemma2 gemma3",
    "gemma4": "gemma4",
    "cohere": "command-r cohere2",
    "stablelm": "stablelm starcoder2 nemotron",
    "olmo": "olmo2 exaone4",
    "glm": "glm4 glm4moe",
    "mixture": "qwen2moe olmoe minimax-m2 ernie4_5-moe bailingmoe2 dots1 hunyuan-moe",
    "muse_glimmer": "muse-glimmer",
    "gpt_oss": "gpt-oss",
    "llama4": "llama4",
    "deepseek": "deepseek2 mistral4",
}
MODULES = {arch: module for module, names in _ARCHITECTURES.items() for arch in names.split()}


def family(arch: str) -> Family:
    """The family of an architecture.

    Raises UnsupportedArchitecture with the names that exist.
    """
    if arch not in MODULES:
        raise UnsupportedArchitecture(f"architecture {arch!r}; supported are {', '.join(sorted(MODULES))}")
    module = importlib.import_module(f".{MODULES[arch]}", __name__)
    found: Family = module.FAMILIES[arch]
    return found
