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
# what is missing -> the architectures that need it
_LACKING = {
    "a state of each sequence (recurrent layers)": "mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7 jamba falcon-h1 plamo2"
    " granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe qwen3next qwen35 qwen35moe qwen4exp kimi-linear kimi-k3"
    " bailingmoe3 minimax-01 glm5-next",
    "sparse attention": "deepseek32 deepseek4 glm-dsa minimax-m3 dots3note",
    "attention that sees later tokens too": "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2"
    " jina-bert-v3 eurobert gemma-embedding llama-embed t5 t5encoder dream llada llada-moe rnd1",
    "positions of pictures": "qwen2vl qwen3vl qwen3vlmoe hunyuan_vl paddleocr cogvlm chameleon deepseek2-ocr",
    "a tower for pictures or sound": "clip wavtokenizer-dec qwen3tts pockettts",
    "drafting for another model": "eagle3 dflash gemma4-assistant",
}
_LACKS = {arch: what for what, names in _LACKING.items() for arch in names.split()}
MODULES = {arch: module for module, names in _ARCHITECTURES.items() for arch in names.split()}


def family(arch: str) -> Family:
    """The family of an architecture.

    Raises UnsupportedArchitecture with what it needs, where that is known, and the names that exist.
    """
    if arch not in MODULES:
        needs = f" needs {_LACKS[arch]}, which is missing" if arch in _LACKS else ""
        raise UnsupportedArchitecture(
            f"architecture {arch!r}{needs}; supported are {', '.join(sorted(MODULES))}"
        )
    module = importlib.import_module(f".{MODULES[arch]}", __name__)
    found: Family = module.FAMILIES[arch]
    return found
