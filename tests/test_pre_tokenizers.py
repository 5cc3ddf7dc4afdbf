"""Where the pre-tokenizers of all families cut, checked by hand against the models' own patterns."""

from __future__ import annotations

import pytest
from tiny import FAMILIES
from tiny_families import RECIPES
from tokenizers import Regex, pre_tokenizers

from pyggml.engine.pre_tokenizers import PRE_TOKENIZERS

# What files of each family have as tokenizer.ggml.pre; "" where the vocabulary is SentencePiece's and needs no cuts.
OF_FAMILIES = {
    "llama": "llama-bpe", "llama4": "llama4", "mistral3": "tekken", "mistral4": "tekken", "smollm3": "llama-bpe",
    "qwen2": "qwen2", "qwen3": "qwen2", "qwen3moe": "qwen2", "qwen2moe": "qwen2", "dots1": "qwen2",
    "internlm2": "", "phi3": "gpt-4o", "gemma": "", "gemma2": "", "gemma3": "", "gemma4": "gemma4",
    "hunyuan-dense": "hunyuan-dense", "hunyuan-moe": "hunyuan", "seed_oss": "seed-coder", "granite": "refact",
    "granitemoe": "refact", "command-r": "command-r", "cohere2": "command-r", "stablelm": "stablelm2",
    "starcoder2": "starcoder", "nemotron": "", "olmo2": "dbrx", "olmoe": "olmo", "exaone4": "exaone4", "glm4": "glm4",
    "glm4moe": "glm4", "minimax-m2": "minimax-m2", "ernie4_5-moe": "", "bailingmoe2": "bailingmoe2",
    "gpt-oss": "gpt-4o", "deepseek2": "deepseek-v3", "muse-glimmer": "llama4",
}  # fmt: skip

PRICE = "I'll pay $1234.5 for 3 cafés\n\n  now"
SYMBOLS = "x != y!!\nz/a"
MIXED = "Kimi你好 K2"
END = ["\n\n", " ", " now"]
THREE_DIGITS = ["I", "'ll", " pay", " $", "123", "4", ".", "5", " for", " ", "3", " cafés", *END]
ONE_DIGIT = ["I", "'ll", " pay", " $", "1", "2", "3", "4", ".", "5", " for", " ", "3", " cafés", *END]
GPT2 = ["I", "'ll", " pay", " $", "1234", ".", "5", " for", " 3", " cafés", "\n\n ", " now"]
DIGITS_THEN_GPT2 = [*ONE_DIGIT[:-3], "\n\n ", " now"]

CUTS: list[tuple[str, str, list[str]]] = [
    ("llama-bpe glm4 dbrx hunyuan-dense deepseek-v3", PRICE, THREE_DIGITS),
    ("gpt-4o llama4 minimax-m2 kimi-k2", PRICE, ["I'll", *THREE_DIGITS[2:]]),
    ("qwen2 hunyuan stablelm2 seed-coder bailingmoe2 tekken", PRICE, ONE_DIGIT),
    ("exaone4 olmo", PRICE, GPT2),
    ("refact starcoder smollm command-r", PRICE, DIGITS_THEN_GPT2),
    ("gemma4", PRICE, ["I'll pay $1234.5 for 3 cafés", "\n\n", "  now"]),
    (
        "deepseek-llm",  # whose range of symbols, from the colon to the tilde, has ASCII's letters in it
        PRICE,
        ["I", "'", "ll", " pay", " $", "1234", ".", "5", " for", " ", "3", " caf", "é", "s", "\n", "\n", " ", " now"],
    ),
    ("llama-bpe glm4 qwen2 hunyuan stablelm2 dbrx bailingmoe2", SYMBOLS, ["x", " !=", " y", "!!\n", "z", "/a"]),
    ("seed-coder", SYMBOLS, ["x", " !=", " y", "!!", "\n", "z", "/a"]),
    ("gpt-4o llama4 minimax-m2 tekken kimi-k2", SYMBOLS, ["x", " !=", " y", "!!\n", "z", "/a"]),
    ("exaone4 olmo refact starcoder command-r", SYMBOLS, ["x", " !=", " y", "!!", "\n", "z", "/", "a"]),
    ("deepseek-v3 hunyuan-dense", SYMBOLS, ["x", " !=", " y", "!!\n", "z", "/a"]),
    ("gemma4", SYMBOLS, ["x != y!!", "\n", "z/a"]),
    ("kimi-k2 deepseek-v3", MIXED, ["Kimi", "你好", " K", "2"]),
    ("llama-bpe qwen2 gpt-4o tekken", MIXED, ["Kimi你好", " K", "2"]),
    ("gpt-4o llama4 minimax-m2 tekken kimi-k2", "camelCase", ["camel", "Case"]),
    ("llama-bpe qwen2 glm4 exaone4 deepseek-v3", "camelCase", ["camelCase"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [(name, text, pieces) for names, text, pieces in CUTS for name in names.split()],
)
def test_cuts_are_those_made_by_hand(name: str, text: str, pieces: list[str]) -> None:
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    assert [piece for piece, _ in pre_tokenizers.Sequence(steps).pre_tokenize_str(text)] == pieces


def test_every_family_has_a_pre_tokenizer_that_is_checked() -> None:
    assert set(OF_FAMILIES) == {*FAMILIES, *RECIPES}
    checked = {name for names, _, _ in CUTS for name in names.split()}
    assert {name for name in OF_FAMILIES.values() if name} <= checked
