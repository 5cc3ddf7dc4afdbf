"""Text to token ids and back, from a GGUF file's metadata alone.

Decisions where implementations differ:
- Tokens are special by their type in the file, never by their looks: an ordinary entry `</s>` stays text.
- Control tokens are found only where the caller asks for them; user-defined tokens are found always.
- Text is composed (NFC) first where the model's own tokenizer does so (Qwen, Command-R, MPT, OLMo).
- SentencePiece's leading space goes before the whole text and before text behind a special token, except where that
  text starts a new line.
The encoder is built when first needed. One object serves all threads; encoding releases the GIL.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from .detokenizer import Detokenizer
from .errors import RequestError
from .special_tokens import SpecialTokens
from .text_encoder import build_pipeline
from .vocabulary import TokenType, Vocabulary


class Tokenizer:
    """The tokenizer of one model.

    `special_texts`: the names of control and unknown tokens; `user_defined_texts`: those of user-defined tokens.
    A file without a vocabulary gives kind "none": ids work and stand for no text, encoding raises RequestError.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.kind = vocabulary.kind
        self.n_vocab = vocabulary.n_vocab
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.unk_id, self.pad_id = vocabulary.unk_id, vocabulary.pad_id
        self.add_bos, self.add_eos = vocabulary.add_bos, vocabulary.add_eos
        self.add_space_prefix = vocabulary.add_space_prefix
        self._pipeline: tokenizers.Tokenizer | None = None
        self._building = threading.Lock()

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Return the tokenizer that a GGUF file's metadata describes.

        Raises: UnsupportedTokenizer, saying what is missing or not known.
        """
        return cls(Vocabulary(metadata))

    @property
    def stop_ids(self) -> frozenset[int]:
        return self.vocabulary.stop_ids

    @cached_property
    def special_texts(self) -> frozenset[str]:
        return frozenset(self.vocabulary.texts_of(TokenType.CONTROL, TokenType.UNKNOWN))

    @cached_property
    def user_defined_texts(self) -> frozenset[str]:
        return frozenset(self.vocabulary.texts_of(TokenType.USER_DEFINED))

    def encode(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Return the ids of a text; `add_special` adds BOS and EOS as the file says, also where the text has one.

        Raises: RequestError.
        """
        return self.encode_segments([(text, parse_special)], add_special=add_special)

    def encode_segments(
        self, segments: Sequence[tuple[str, bool]], *, add_special: bool = False
    ) -> list[int]:
        """Return the ids of one text that is given in pieces (text, parse_special).

        Only special tokens that lie in pieces with parse_special count; otherwise the cuts leave no trace in the ids.
        Raises: RequestError.
        """
        if self.kind == "none":
            raise RequestError(
                "this model has no vocabulary, so text cannot be encoded: pass token ids instead"
            )
        text = "".join(text for text, _ in segments)
        pieces = list(self._special_tokens.cut(text, _regions(segments)))
        encoded = iter(self._encode_plain(pieces))
        ids = [self.bos_id] if add_special and self.add_bos and self.bos_id is not None else []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += next(encoded)
        last = self.vocabulary.sep_id if self.kind == "bert" else self.eos_id if self.add_eos else None
        return [*ids, last] if add_special and last is not None else ids

    def _encode_plain(self, pieces: Sequence[str | int]) -> list[list[int]]:
        """The ids of each stretch of plain text among the pieces."""
        texts = [piece for piece in pieces if isinstance(piece, str)]
        if self.kind == "llama" and self.add_space_prefix:
            starts_with_text = bool(pieces) and isinstance(pieces[0], str)
            texts = [
                text if text.startswith("\n") and not (k == 0 and starts_with_text) else f" {text}"
                for k, text in enumerate(texts)
            ]
        if not texts:
            return []
        try:
            return [
                encoding.ids
                for encoding in self._encoder().encode_batch_fast(texts, add_special_tokens=False)
            ]
        except (TypeError, UnicodeEncodeError):
            for text in texts:
                _check_unicode(text)
            raise

    def _encoder(self) -> tokenizers.Tokenizer:
        if self._pipeline is None:
            with self._building:
                if self._pipeline is None:
                    self._pipeline = build_pipeline(self.vocabulary)
        return self._pipeline

    @cached_property
    def _special_tokens(self) -> SpecialTokens:
        control = self.vocabulary.texts_of(TokenType.CONTROL, TokenType.UNKNOWN)
        user_defined = self.vocabulary.texts_of(TokenType.USER_DEFINED)
        strips_after: frozenset[str] = frozenset()
        if self.vocabulary.strips_after_control:
            strips_after = frozenset({*control, *user_defined} - {"<unk>", "<s>", "<|endoftext|>"})
        return SpecialTokens(control, user_defined, strips_after)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for: a control token's name, nothing for an id without a text."""
        table = self.vocabulary.byte_table
        return table[token_id] if 0 <= token_id < len(table) else b""

    def token_text(self, token_id: int) -> str:
        """Return `token_bytes` as text, with U+FFFD for bytes that are no whole character."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def is_control(self, token_id: int) -> bool:
        """Say whether a token is no text: control or unknown."""
        return token_id in self.vocabulary.control_ids

    def is_user_defined(self, token_id: int) -> bool:
        """Say whether a token is user-defined: matched in any text, verbatim."""
        types = self.vocabulary.types
        return 0 <= token_id < len(types) and int(types[token_id]) == TokenType.USER_DEFINED

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of a whole sequence, as a Detokenizer would stream it from its start."""
        stream = Detokenizer(self, at_start=True, skip_special=skip_special)
        return "".join([*map(stream.push, ids), stream.finish()])

    def id_of(self, text: str) -> int | None:
        """Return the id of a token as the file spells it (special tokens by their names); None if there is none."""
        return self.vocabulary.ids.get(text)


def _regions(segments: Iterable[tuple[str, bool]]) -> list[tuple[int, int]]:
    """Where special tokens may stand: the joined runs of pieces with parse_special."""
    regions: list[tuple[int, int]] = []
    position = 0
    for text, parse_special in segments:
        end = position + len(text)
        if parse_special and text:
            start = regions.pop()[0] if regions and regions[-1][1] == position else position
            regions.append((start, end))
        position = end
    return regions


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise RequestError(
            f"the text holds half a surrogate pair at character {problem.start}, which is no Unicode character"
        ) from None
