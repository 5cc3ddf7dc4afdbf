"""Grammars of requests, compiled for one model's vocabulary and kept for the next request that asks for the same.

The library is llguidance. It sees tokens as bytes; control tokens and those that end an answer are no text for it, so
that a string can hold neither. Its tables are made when the first grammar comes. Any thread may compile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import llguidance

from .constraint import Constraint
from .errors import RequestError
from .grammar import Grammar, compile_error
from .sampling_params import SamplingParams
from .tokenizer import Tokenizer

MAX_COMPILED = 64


class _Vocabulary:
    """A tokenizer as llguidance asks for it."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        vocabulary = tokenizer.vocabulary
        special = vocabulary.control_ids | vocabulary.stop_ids
        self.tokens: Sequence[bytes] = [
            b"\xff" + text if id in special else text for id, text in enumerate(vocabulary.byte_table)
        ]
        self.special_token_ids = sorted(special)
        self.eos_token_id = min(vocabulary.stop_ids)
        self.bos_token_id = vocabulary.bos_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Asked for by the library; grammars that force no tokens never use it."""
        return self._tokenizer.encode(text)


class GrammarCompiler:
    """Makes the constraints of one model's answers; `n_vocab` is the number of its logits."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer = tokenizer
        self._n_vocab = max(n_vocab, tokenizer.n_vocab)
        self._tables: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self.n_compiled = 0

    def constraint(self, params: SamplingParams) -> Constraint | None:
        """The constraint that the parameters ask for, new for each answer; None if they ask for none.

        Raises: RequestError, naming the parameter and the place in it that cannot be used.
        """
        grammar = Grammar.of(params)
        if grammar is None:
            return None
        with self._lock:  # copying reads the stored matcher, which the library lends to one thread at a time
            matcher = self._compiled.get(grammar.text)
            if matcher is None:
                matcher = self._compiled[grammar.text] = self._compile(grammar)
                while len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(grammar.text)
            own = matcher.deep_copy()
        return Constraint(
            own,
            n_words=(self._n_vocab + 31) // 32,
            texts=self._tokenizer.vocabulary.byte_table,
            trigger=params.trigger,
        )

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        if self._tables is None:
            self._tables = self._made_tables()
        matcher = llguidance.LLMatcher(self._tables, grammar.text, log_level=0)
        if matcher.is_error():
            raise compile_error(grammar, matcher.get_error())
        first = matcher.deep_copy()
        if not any(first.compute_bitmask()) or first.is_error():
            raise RequestError(f"{grammar.name} allows no text at all: each of its rules needs another one")
        self.n_compiled += 1
        return matcher

    def _made_tables(self) -> llguidance.LLTokenizer:
        stop_ids = sorted(self._tokenizer.stop_ids)
        if self._tokenizer.kind not in ("gpt2", "llama", "gemma4"):
            raise RequestError(
                f"this model's vocabulary is of kind {self._tokenizer.kind!r}; "
                "a grammar needs one that texts are written with: gpt2, llama or gemma4"
            )
        if not stop_ids:
            raise RequestError("this model has no token that ends an answer, which a grammar needs")
        wrapped: Any = _Vocabulary(self._tokenizer)
        return llguidance.LLTokenizer(wrapped, n_vocab=self._n_vocab, eos_token=stop_ids)
