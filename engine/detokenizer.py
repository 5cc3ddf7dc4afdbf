"""Token ids to text, one token at a time.

A character's bytes may come in several tokens: text is held back until it is whole, and bytes that never make a
character become U+FFFD, one for each broken run, as Python's incremental UTF-8 decoder does it. One object per
sequence; not shared between threads.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Streams the text of one sequence.

    `at_start`: the sequence is a whole text, so the space that SentencePiece put before it is dropped; what continues
    a prompt keeps its space. `skip_special`: control tokens give no text, but for those in `shown`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        at_start: bool = False,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._table = tokenizer.vocabulary.byte_table
        self._hidden = tokenizer.vocabulary.control_ids - shown if skip_special else frozenset()
        self._drops_space = at_start and tokenizer.add_space_prefix
        self._decoder = _new_decoder("replace")

    def push(self, token_id: int) -> str:
        """Return the text that this token completes, which may be empty."""
        if token_id in self._hidden or not 0 <= token_id < len(self._table):
            return ""
        data = self._table[token_id]
        if self._drops_space and not self._tokenizer.is_control(token_id):
            self._drops_space = False
            if not self._tokenizer.is_user_defined(token_id):
                data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def finish(self) -> str:
        """Return what is left at the end of the sequence: U+FFFD if it ended within a character."""
        return self._decoder.decode(b"", final=True)
