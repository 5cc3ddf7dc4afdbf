"""Tokenizers for tests: of files, and of small vocabularies made here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType
from tiny_vocab import BYTE_CHARS, spelled

import pyggml
from pyggml.engine.tokenizer import Tokenizer


@cache
def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file."""
    return Tokenizer.from_gguf(pyggml.GGUF(path).metadata)


def archive_tokenizer(archive: Path, name: str) -> Tokenizer:
    """The tokenizer of one of the archive's vocabularies."""
    return tokenizer_of(archive / "models" / f"ggml-vocab-{name}.gguf")


def write_vocabulary(path: Path, source: Path, *, pre: str) -> Path:
    """Write the vocabulary of a tokenizer.json as a GGUF file, as llama.cpp's converter does."""
    described = json.loads(source.read_text())
    vocabulary, added = described["model"]["vocab"], described["added_tokens"]
    n = 1 + max(*vocabulary.values(), *(token["id"] for token in added))
    tokens, types = [f"[PAD{i}]" for i in range(n)], [int(TokenType.UNUSED)] * n
    for text, i in vocabulary.items():
        tokens[i], types[i] = text, int(TokenType.NORMAL)
    for token in added:
        i = token["id"]
        tokens[i] = token["content"]
        types[i] = int(TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED)
    merges = described["model"]["merges"]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def byte_level(
    words: Sequence[str] = (),
    *,
    control: Sequence[str] = (),
    user_defined: Sequence[str] = (),
    pre: str = "gpt-2",
    **keys: object,
) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary: the bytes, then `words` with the merges they need, then special tokens."""
    tokens, merges = list(BYTE_CHARS), []
    for word in map(spelled, (word.encode() for word in words)):
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append(f"{word[: end - 1]} {word[end - 1]}")
    types = [TokenType.NORMAL] * len(tokens)
    types += [TokenType.CONTROL] * len(control) + [TokenType.USER_DEFINED] * len(user_defined)
    return _keys(
        "gpt2", tokens=[*tokens, *control, *user_defined], token_type=types, merges=merges, pre=pre, **keys
    )


def sentence_piece(
    pieces: Mapping[str, float] | Sequence[str],
    *,
    control: Sequence[str] = (),
    user_defined: Sequence[str] = (),
    has_bytes: bool = True,
    **keys: object,
) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: `<unk>`, `<s>`, `</s>`, bytes, pieces (earlier is better), specials."""
    scores = (
        dict(pieces) if isinstance(pieces, Mapping) else {piece: -float(k) for k, piece in enumerate(pieces)}
    )
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if has_bytes else []
    special = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}
    listed = [
        *((text, kind, 0.0) for text, kind in special.items()),
        *((text, TokenType.BYTE, 0.0) for text in byte_tokens),
        *((text, TokenType.NORMAL, score) for text, score in scores.items()),
        *((text, TokenType.CONTROL, 0.0) for text in control),
        *((text, TokenType.USER_DEFINED, 0.0) for text in user_defined),
    ]
    tokens, types, values = (list(column) for column in zip(*listed, strict=True))
    return _keys("llama", tokens=tokens, token_type=types, scores=values, **keys)


def _keys(model: str, **keys: object) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": model,
        **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
    }
