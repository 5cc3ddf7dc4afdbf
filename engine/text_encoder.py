"""Builds the `tokenizers` pipeline that turns plain text into ids, from a vocabulary alone.

One builder per kind of tokenizer. Special tokens are no business of a pipeline: control tokens are kept out of its
model, so that no text can be spelled into one. A pipeline is immutable here and may be used by several threads.
Source: the models' own pipelines as published in their tokenizer.json files; llama.cpp gives the same ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from .errors import UnsupportedTokenizer
from .spm_merges import merges_by_score
from .vocabulary import SPACE_MARK, TokenType, Vocabulary

NO_TEXT = (TokenType.CONTROL, TokenType.UNKNOWN)
# The library would keep the merges of 10,000 words in each thread that encodes, up to 34 MiB a thread where words are
# long and all different, to save a tenth of the time.
N_WORDS_KEPT = 0


def build_pipeline(vocabulary: Vocabulary) -> Tokenizer:
    """Return the pipeline for plain text of this vocabulary.

    Raises: UnsupportedTokenizer where the file's parts don't fit together.
    """
    try:
        return _BUILDERS[vocabulary.kind](vocabulary)
    except Exception as problem:
        if type(problem) is not Exception:  # which is what the library raises
            raise
        raise UnsupportedTokenizer(
            f"the {vocabulary.kind} tokenizer of this file cannot be built: {problem}"
        ) from None


def _split(patterns: tuple[str, ...]) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def _byte_level_bpe(vocabulary: Vocabulary) -> Tokenizer:
    pre = vocabulary.pre
    assert pre is not None
    ids = vocabulary.texts_but(*NO_TEXT)
    tokenizer = Tokenizer(_merging_model(vocabulary, ids, ignore_merges=pre.ignore_merges))
    if pre.nfc:
        tokenizer.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*_split(pre.patterns), to_bytes])
    return tokenizer


def _marked_bpe(vocabulary: Vocabulary) -> Tokenizer:
    """Gemma 4's scheme: merges from the file, spaces as U+2581, bytes of what is unknown."""
    pre = vocabulary.pre
    assert pre is not None
    ids, unknown = _ids_with_unknown(vocabulary)
    tokenizer = Tokenizer(
        _merging_model(vocabulary, ids, unk_token=unknown, byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(_split(pre.patterns))
    return tokenizer


def _sentence_piece_bpe(vocabulary: Vocabulary) -> Tokenizer:
    assert vocabulary.scores is not None
    ids, unknown = _ids_with_unknown(vocabulary)
    joinable = vocabulary.texts_but(*NO_TEXT, TokenType.BYTE)
    scores = vocabulary.scores[np.fromiter(joinable.values(), np.int64, len(joinable))]
    merges = merges_by_score(list(joinable), scores)
    options = {"unk_token": unknown, "byte_fallback": True, "fuse_unk": True, "cache_capacity": N_WORDS_KEPT}
    tokenizer = Tokenizer(models.BPE(ids, merges, **options))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE_MARK)
    return tokenizer


def _word_piece(vocabulary: Vocabulary) -> Tokenizer:
    """Files mark the pieces that start a word; the library's model wants the others marked."""
    texts = vocabulary.texts_but(*NO_TEXT, TokenType.BYTE)
    ids = {text[1:] if text.startswith(SPACE_MARK) else f"##{text}": i for text, i in texts.items()}
    if vocabulary.unk_id is None:
        raise UnsupportedTokenizer("a bert tokenizer needs tokenizer.ggml.unknown_token_id")
    unknown = vocabulary.tokens[vocabulary.unk_id]
    ids[unknown] = vocabulary.unk_id
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        strip_accents=vocabulary.strip_accents, lowercase=vocabulary.lowercase
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _unigram(vocabulary: Vocabulary) -> Tokenizer:
    assert vocabulary.scores is not None
    # The model numbers its pieces itself, so tokens that are no text stay as pieces that hold a blank: no text that
    # reaches the model does.
    is_text = np.isin(vocabulary.types, NO_TEXT, invert=True).tolist()
    texts = [text if is_text[i] else f" {i}" for i, text in enumerate(vocabulary.tokens)]
    pieces = list(zip(texts, vocabulary.scores.tolist(), strict=True))
    tokenizer = Tokenizer(models.Unigram(pieces, vocabulary.unk_id, byte_fallback=False))
    steps: list[normalizers.Normalizer] = []
    if vocabulary.charsmap:
        steps.append(normalizers.Precompiled(vocabulary.charsmap))
    if vocabulary.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if vocabulary.add_space_prefix else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, scheme)
    return tokenizer


def _ids_with_unknown(vocabulary: Vocabulary) -> tuple[dict[str, int], str | None]:
    ids = vocabulary.texts_but(*NO_TEXT)
    if vocabulary.unk_id is None:
        return ids, None
    unknown = vocabulary.tokens[vocabulary.unk_id]
    ids[unknown] = vocabulary.unk_id
    return ids, unknown


def _merging_model(vocabulary: Vocabulary, ids: dict[str, int], **options: Any) -> models.BPE:
    """The model with the file's merges; a line's cut is its first blank that is not its first character."""
    lines = vocabulary.merges or []
    options["cache_capacity"] = N_WORDS_KEPT
    try:
        pairs = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
        return models.BPE(ids, pairs, **options)
    except (
        Exception
    ):  # the library raises bare Exception for a line that it cannot use, and refuses the whole list
        cuts = ((line, line.find(" ", 1)) for line in lines)
        pairs = [(line[:cut], line[cut + 1 :]) for line, cut in cuts if cut > 0]
        usable = [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids]
        return models.BPE(ids, usable, **options)


_BUILDERS: dict[str, Callable[[Vocabulary], Tokenizer]] = {
    "gpt2": _byte_level_bpe,
    "gemma4": _marked_bpe,
    "llama": _sentence_piece_bpe,
    "bert": _word_piece,
    "t5": _unigram,
}
