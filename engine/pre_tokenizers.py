"""How each family of byte-level BPE cuts a text into words, by the name in `tokenizer.ggml.pre`.

A pre-tokenizer is a list of patterns, applied one after another to what the one before left whole; what a pattern
matches becomes a piece and so does what lies between two matches. The patterns are those of the models' own
tokenizers in Oniguruma's syntax (facts, also listed by llama.cpp's llama-vocab.cpp); characters that a terminal may
spoil are written as escapes. A name that is not here is refused: a wrong cut costs quality without any error.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace

from .errors import UnsupportedTokenizer


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The cuts of one family and what else its name implies.

    `nfc`: the model's own tokenizer composes characters first. `is_byte_level`: False where the vocabulary spells text
    as it is, with U+2581 for a space. `ignore_merges`: a word that is a token needs no merges.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    nfc: bool = False
    is_byte_level: bool = True


_SUFFIX = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SPACES_BY_LINE = r"\s*[\r\n]|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LINES = r"[^\n]+|[\n]+"
_DIGITS = r"\p{N}{1,3}"
_DIGIT = r"\p{N}"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_SENTENCE = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_HANGUL_TO_HAN = (
    "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    "|[\u3105-\u312f]+|" + _HAN_KANA
)
# DeepSeek LLM lists its letters one range after another.
_DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-"
    "\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-"
    "\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-"
    "\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115"
    "\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e"
    "\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-"
    "\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-"
    "\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)


def _words(
    digits: str,
    *,
    suffix: str = _SUFFIX,
    word: str = r"\p{L}+",
    symbols: str = r"[^\s\p{L}\p{N}]+[\r\n]*",
    spaces: str = _SPACES,
) -> str:
    """Llama 3's scheme: suffixes, words, digits, symbols with their line ends, white space."""
    parts = (suffix, rf"[^\r\n\p{{L}}\p{{N}}]?{word}", digits, f" ?{symbols}", spaces)
    return "|".join(part for part in parts if part)


def _cased_words(digits: str, suffix: str = "", *, but: str = "", ends: str = r"\r\n/") -> str:
    """o200k's scheme: a word ends where lower case turns to upper case; `but` takes characters out of words."""
    upper, lower = rf"\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}", rf"\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}"
    before = r"[^\r\n\p{L}\p{N}]?"
    word = f"{before}[{upper}]*[{lower}]+{suffix}|{before}[{upper}]+[{lower}]*{suffix}"
    return rf"{word}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[{ends}]*|{_SPACES}"


def _punctuated_words(symbols: str = r"[\r\n]*", spaces: str = _SPACES) -> str:
    """DeepSeek V3's scheme: marks belong to words, and a sign may lead a word."""
    word = rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    return rf"{word}| ?[\p{{P}}\p{{S}}]+{symbols}|{spaces}"


_HALVING_SPACES = "|".join([*(rf"\s{{{2**k}}}(?!\S)" for k in range(9, 1, -1)), r"\s{1,2}(?!\S)", r"\s{1}"])

_LLAMA3 = PreTokenizer((_words(_DIGITS),), ignore_merges=True, add_bos=True)
_PLAIN_GPT2 = PreTokenizer((_GPT2,))
_DIGIT_GPT2 = PreTokenizer((_DIGIT, _GPT2))
_QWEN2 = PreTokenizer((_words(_DIGIT),))
_O200K = PreTokenizer((_cased_words(_DIGITS, f"{_SUFFIX}?"),))
_DEEPSEEK_V3 = PreTokenizer((_DIGITS, _HAN_KANA, _punctuated_words()))
_GEMMA4 = PreTokenizer((_LINES,), add_bos=True, is_byte_level=False)

_FAMILIES: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano": _LLAMA3,
    "dbrx smaug-bpe chatglm-bpe": PreTokenizer((_words(_DIGITS),)),
    "glm4 glm5": PreTokenizer((_words(_DIGITS),), ignore_merges=True),
    "minicpm5": PreTokenizer((_DIGITS, _words(r"\p{N}+")), ignore_merges=True),
    "jais-2": PreTokenizer((_words(_DIGITS, spaces=rf"\s*[\r\n]+|{_HALVING_SPACES}"),)),
    "qwen2": replace(_QWEN2, nfc=True),
    "deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2": _QWEN2,
    # Marks count as letters here, and text stays decomposed: so say the ids that come with its vocabulary.
    "qwen35": PreTokenizer((_words(_DIGIT, word=r"[\p{L}\p{M}]+", symbols=r"[^\s\p{L}\p{M}\p{N}]+[\r\n]*"),)),
    "laguna": PreTokenizer((_LINES, _words(_DIGIT))),
    "ufakzeka": PreTokenizer((_words(_DIGIT, suffix=""),)),
    "bailingmoe bailingmoe2 llada-moe": PreTokenizer(
        (_words(_DIGIT, suffix="'(?i:[sdmt]|ll|ve|re)", spaces=_SPACES_BY_LINE),)
    ),
    "seed-coder": PreTokenizer((_words(_DIGIT, symbols=r"[^\s\p{L}\p{N}\r\n]+"),)),
    "exaone-moe": PreTokenizer(
        (
            _words(
                _DIGIT,
                word=r"(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                symbols=r"[^\s\p{L}\p{N}]+[\r\n/]?",
                spaces=_SPACES_BY_LINE,
            ),
        )
    ),
    "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe gigachat a.x-4.0 mellum"
    " modern-bert exaone4 jais trillion granite-docling": _PLAIN_GPT2,
    "mpt olmo": replace(_PLAIN_GPT2, nfc=True),
    "smollm starcoder refact codeshell exaone minerva-7b mellum2": _DIGIT_GPT2,
    "command-r": replace(_DIGIT_GPT2, nfc=True),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "bloom gpt3-finnish poro-chat": PreTokenizer((_SENTENCE,)),
    "viking": PreTokenizer((_SENTENCE, _DIGIT)),
    "chameleon": PreTokenizer(
        (
            "<sentinel:[0-9]+>",
            "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            "([\\t\\n]|    |  )",
            _DIGIT,
            r"[\p{P}!-/:-@\[-`{-~]",
            _GPT2,
        ),
        add_bos=True,
    ),
    "gpt-4o llama4 kanana2 talkie minimax-m2": _O200K,
    "kimi-k2": PreTokenizer(
        (r"\p{Han}+|" + _cased_words(_DIGITS, f"{_SUFFIX}?", but=r"&&[^\p{Han}]", ends=r"\r\n"),)
    ),
    "granite-embed-multi-97m": replace(_O200K, ignore_merges=True),
    "tiny_aya cohere2moe": PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", *_O200K.patterns)),
    "tekken": PreTokenizer((_cased_words(_DIGIT),), ignore_merges=True, add_bos=True),
    "youtu": PreTokenizer((_HANGUL_TO_HAN, _cased_words(_DIGIT, f"{_SUFFIX}?")), ignore_merges=True),
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            _EAST_ASIAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)),
    "deepseek-v3 hunyuan-dense hy_v4 joyai-llm": _DEEPSEEK_V3,
    "spark2_5": PreTokenizer(
        (_DIGITS, _HAN_KANA, _punctuated_words(symbols="", spaces=r"[\r\n]|\s+(?!\S)|\s+"), _DIGIT)
    ),
    "gemma4 granite-embed-multi-311m": _GEMMA4,
    "sarvam-moe": replace(_GEMMA4, add_bos=False),
}
PRE_TOKENIZERS = {name: family for names, family in _FAMILIES.items() for name in names.split()}

REFUSED = {
    "afmoe": "its digit groups count from the right, which needs its own code",
    "superbpe": "its merges span words",
    "whitespace": "it drops white space, so that text does not come back",
}


def pre_tokenizer(name: str | None) -> PreTokenizer:
    """Return the pre-tokenizer of a `tokenizer.ggml.pre` value; None (no such key) is llama.cpp's `default`.

    Raises: UnsupportedTokenizer, with the nearest known names.
    """
    if name is None or name == "":
        return PRE_TOKENIZERS["default"]
    if name in REFUSED:
        raise UnsupportedTokenizer(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported: {REFUSED[name]}"
        )
    if name not in PRE_TOKENIZERS:
        near = difflib.get_close_matches(name, PRE_TOKENIZERS, n=4, cutoff=0.5)
        hint = f"names like it: {', '.join(near)}" if near else f"known: {', '.join(sorted(PRE_TOKENIZERS))}"
        raise UnsupportedTokenizer(
            f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known, and a wrong one would give wrong ids; {hint}"
        )
    return PRE_TOKENIZERS[name]
