"""The vocabulary of a GGUF file: tokens, their types, the special ids, and the bytes that each token stands for.

Reads the `tokenizer.ggml.*` keys and fills in what llama.cpp assumes where a key is missing; encodes nothing. What
costs time on a large vocabulary (text to id, bytes, stop ids) is made when first asked for. Immutable otherwise, and
safe to share between threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UnsupportedTokenizer
from .pre_tokenizers import PreTokenizer, pre_tokenizer

SPACE_MARK = "\u2581"
KINDS = {"gpt2": "gpt2", "llama": "llama", "gemma4": "gemma4", "bert": "bert", "t5": "t5"}
NO_VOCABULARY = (None, "none", "no_vocab")

# What ends a turn, by text: files name at most one such token, models have more. `</s>` and the like are ordinary
# text in some vocabularies, so those count only where the file calls them control tokens.
END_TEXTS = frozenset(
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|calls|> <|flush|> <|endoftext|> <|end_of_text|> <|eom_id|>"
    " <end_of_turn> <turn|> <end_of_utterance> <|tool_response>".split()
)
END_TEXTS_IF_CONTROL = frozenset(
    "</s> <eos> <EOT> _<EOT> [EOT] [EOS] [e~[ <|END_OF_TURN_TOKEN|> <\uff5cend\u2581of\u2581sentence\uff5c>".split()
)
# These name Harmony's and Solar's formats, where `<|end|>` closes one message of several and the turn goes on.
MESSAGE_END = "<|end|>"
MULTI_MESSAGE_MARKS = tuple({a, b} for a in ("<|return|>", "<|flush|>") for b in ("<|call|>", "<|calls|>"))


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type` as GGUF numbers it."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Tokens and special ids of one file; `kind` is "gpt2", "llama", "gemma4", "bert", "t5" or "none".

    Raises: UnsupportedTokenizer, saying which key is missing or wrong.
    """

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        model = metadata.get("tokenizer.ggml.model")
        if model not in NO_VOCABULARY and model not in KINDS:
            raise UnsupportedTokenizer(
                f"tokenizer {model!r} (tokenizer.ggml.model) is not supported; supported: {', '.join(KINDS)}, no_vocab"
            )
        self.kind = "none" if model in NO_VOCABULARY else KINDS[model]
        self._metadata = metadata
        self.tokens: list[str] = []
        self.types = np.zeros(0, np.int32)
        self.scores: NDArray[np.float32] | None = None
        self.merges: list[str] | None = None
        self.charsmap: bytes | None = None
        self.pre: PreTokenizer | None = None
        if self.kind != "none":
            self._read_tokens()
        self.n_vocab = len(self.tokens) or self._count_without_tokens()
        self._read_special_ids()
        self._read_flags()

    def _key(self, name: str, default: Any = None) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _array(self, name: str, n_min: int = 0) -> Any:
        values = self._key(name)
        if values is None:
            raise UnsupportedTokenizer(
                f"a {self.kind} tokenizer needs tokenizer.ggml.{name}, which the file lacks"
            )
        if len(values) < n_min:
            raise UnsupportedTokenizer(f"tokenizer.ggml.{name} has {len(values)} entries for {n_min} tokens")
        return values

    def _read_tokens(self) -> None:
        self.tokens = list(self._array("tokens", 1))
        n = len(self.tokens)
        if self._key("token_type") is None:
            self.types = np.full(n, TokenType.NORMAL, np.int32)
        else:
            self.types = np.asarray(self._array("token_type", n), np.int32)[:n]
        if self.kind in ("llama", "t5"):
            self.scores = np.asarray(self._array("scores", n), np.float32)[:n]
        if self.kind in ("gpt2", "gemma4"):
            self.pre = pre_tokenizer("gemma4" if self.kind == "gemma4" else self._key("pre"))
            self.kind = "gpt2" if self.pre.is_byte_level else "gemma4"
            self.merges = list(self._array("merges"))
        if self._key("precompiled_charsmap") is not None:
            self.charsmap = bytes(np.asarray(self._key("precompiled_charsmap")).astype(np.uint8))

    def _count_without_tokens(self) -> int:
        return int(self._metadata.get(f"{self._metadata.get('general.architecture')}.vocab_size", 0))

    def _id(self, *names: str, default: int | None = None) -> int | None:
        for name in names:
            value = self._key(f"{name}_token_id")
            if value is not None and 0 <= int(value) < self.n_vocab:
                return int(value)
        return default if default is not None and default < self.n_vocab else None

    def _read_special_ids(self) -> None:
        spm, wpm = self.kind == "llama", self.kind == "bert"
        self.bos_id = (
            self._id("bos", "cls", default=101) if wpm else self._id("bos", default=1 if spm else None)
        )
        self.eos_id = self._id("eos", default={"llama": 2, "t5": 1}.get(self.kind))
        self.unk_id = self._id("unknown", default={"llama": 0, "t5": 2, "bert": 100}.get(self.kind))
        self.sep_id = self._id("seperator", "separator", default=102 if wpm else None)
        self.pad_id = self._id("padding", default=0 if wpm or self.kind == "t5" else None)
        self.eot_id, self.eom_id = self._id("eot"), self._id("eom")

    def _read_flags(self) -> None:
        add_bos = self.kind in ("llama", "bert") or (self.pre is not None and self.pre.add_bos)
        self.add_bos = bool(self._key("add_bos_token", add_bos)) and self.bos_id is not None
        self.add_eos = bool(self._key("add_eos_token", self.kind == "t5")) and self.eos_id is not None
        self.add_space_prefix = bool(self._key("add_space_prefix", self.kind in ("llama", "t5")))
        self.remove_extra_whitespaces = bool(self._key("remove_extra_whitespaces", False))
        self.lowercase = bool(self._key("normalizer.lowercase", True))
        self.strip_accents = bool(self._key("normalizer.strip_accents", self.lowercase))
        # Phi-3's control tokens swallow the white space behind them; files say so only by the model's name.
        name = str(self._metadata.get("general.name", "")).lower()
        self.strips_after_control = "phi-3" in name or "phi3" in name

    def texts_of(self, *types: TokenType) -> dict[str, int]:
        """Return text to id of all tokens of these types; tokens without text are left out."""
        ids = np.flatnonzero(np.isin(self.types, types)).tolist()
        return {self.tokens[i]: i for i in ids if self.tokens[i]}

    def texts_but(self, *types: TokenType) -> dict[str, int]:
        """Return text to id of all tokens but those of these types and those without text."""
        texts = dict(self.ids)
        texts.pop("", None)
        for i in np.flatnonzero(np.isin(self.types, types)).tolist():
            texts.pop(self.tokens[i], None)
        return texts

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that are no text: control and unknown."""
        return frozenset(np.flatnonzero(np.isin(self.types, (TokenType.CONTROL, TokenType.UNKNOWN))).tolist())

    @cached_property
    def ids(self) -> dict[str, int]:
        """Id by text as the file spells it."""
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a generation: those that the file names, and those that are known by their text."""
        found = {self.ids[text] for text in END_TEXTS & self.ids.keys()}
        found |= {self.ids[text] for text in END_TEXTS_IF_CONTROL & self.ids.keys()} & self.control_ids
        found |= {i for i in (self.eos_id, self.eot_id, self.eom_id) if i is not None}
        texts = {self.tokens[i] for i in found if i < len(self.tokens)}
        if MESSAGE_END in texts and any(marks <= texts for marks in MULTI_MESSAGE_MARKS):
            found.discard(self.ids[MESSAGE_END])
        return frozenset(found)

    @cached_property
    def byte_table(self) -> list[bytes]:
        """The bytes that each token stands for; control tokens stand for their names, unused ones for nothing."""
        spelling = _byte_level_bytes if self.kind == "gpt2" else _marked_bytes
        table = [spelling(text) for text in self.tokens]
        verbatim = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
        for i in np.flatnonzero(np.isin(self.types, verbatim)).tolist():
            table[i] = self.tokens[i].encode()
        for i in np.flatnonzero(self.types == TokenType.UNUSED).tolist():
            table[i] = b""
        for i in np.flatnonzero(self.types == TokenType.BYTE).tolist():
            table[i] = _byte_token(self.tokens[i])
        return table


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins: printable Latin-1 characters are themselves, the other bytes follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTE_OF = _byte_level_alphabet()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[char] for char in token])
    except KeyError:
        return token.encode()


def _marked_bytes(token: str) -> bytes:
    return token.replace(SPACE_MARK, " ").encode()


def _byte_token(token: str) -> bytes:
    """`<0x0A>` to its byte."""
    try:
        return bytes([int(token.removeprefix("<0x").removesuffix(">"), 16)])
    except ValueError:
        return token.encode()
