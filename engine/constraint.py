"""What one answer's grammar allows next: a mask of tokens, moved on by each token that was chosen.

With a trigger the grammar sleeps, and costs nothing, until one of the trigger's texts begins in the answer; it must
match from there. Knows no sampling and compiles nothing. One object per sequence, engine thread only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import llguidance
import numpy as np
import numpy.typing as npt

from .errors import GenerationError, RequestError


@dataclass(frozen=True)
class Trigger:
    """Where a sleeping grammar wakes: at the first of `texts`, outside of stretches from `opens` to `closes`.

    `is_open`: the prompt ends within such a stretch, so the answer begins in it. `is_first`: only where nothing but
    such stretches and white space came before.
    """

    texts: tuple[str, ...]
    opens: str = ""
    closes: str = ""
    is_open: bool = False
    is_first: bool = False

    def __post_init__(self) -> None:
        if not self.texts or not all(isinstance(text, str) and text for text in self.texts):
            raise RequestError(f"trigger.texts is {self.texts!r}; texts that are not empty are needed")
        if bool(self.opens) != bool(self.closes) and not (self.closes and self.is_open):
            raise RequestError("a trigger that has opens needs closes, too")


class Watch:
    """Finds the token in which a trigger's text begins, as tokens come."""

    def __init__(self, trigger: Trigger) -> None:
        self._texts = [text.encode() for text in trigger.texts]
        self._opens, self._closes = trigger.opens.encode(), trigger.closes.encode()
        self._is_open = trigger.is_open
        self._is_first = trigger.is_first
        self._is_late = False
        self._held = b""  # may be the beginning of a text that is looked for
        self._starts: list[int] = []  # where in `_held` each token starts that is in it
        self._tokens: list[int] = []

    def push(self, token: int, data: bytes) -> list[int] | None:
        """The tokens from the one in which a trigger's text begins, once it is whole."""
        if self._is_late:
            return None
        self._starts.append(len(self._held))
        self._tokens.append(token)
        self._held += data
        while True:
            wanted = [self._closes] if self._is_open else [*self._texts, *([self._opens] if self._opens else [])]
            found = [(at, text) for text in wanted if (at := self._held.find(text)) >= 0]
            if not found:
                self._drop(min(_begun_at(self._held, text) for text in wanted))
                return None
            at, text = min(found)
            if self._is_first and not self._is_open and self._held[:at].strip():
                self._is_late = True
                return None
            if text in self._texts and not self._is_open:
                k = max(k for k, start in enumerate(self._starts) if start <= at)
                return self._tokens[k:]
            self._is_open = not self._is_open
            self._drop(at + len(text), is_mark=True)

    def _drop(self, end: int, is_mark: bool = False) -> None:
        """Forget the first `end` bytes, and the tokens that end there or before."""
        if self._is_first and not self._is_open and not is_mark and self._held[:end].strip():
            self._is_late = True
        ends = [*self._starts[1:], len(self._held)]
        n_gone = sum(1 for stop in ends if stop <= end)
        self._held = self._held[end:]
        self._tokens = self._tokens[n_gone:]
        self._starts = [max(0, start - end) for start in self._starts[n_gone:]]


def _begun_at(held: bytes, text: bytes) -> int:
    """The first place from which the rest could become the text."""
    for n in range(min(len(text) - 1, len(held)), 0, -1):
        if held.endswith(text[:n]):
            return len(held) - n
    return len(held)


class Constraint:
    """The state of a grammar within one answer; `texts` are the bytes of the tokens.

    A sleeping constraint that wakes within a token whose rest the grammar refuses goes back to sleep for good: what
    has been sent cannot be taken back.
    """

    def __init__(
        self,
        matcher: llguidance.LLMatcher,
        *,
        n_words: int,
        texts: Sequence[bytes] = (),
        trigger: Trigger | None = None,
    ) -> None:
        self._matcher = matcher
        self._mask = np.zeros(n_words, np.int32)
        self._is_ready = False
        self._texts = texts
        self._watch = None if trigger is None else Watch(trigger)
        self.is_awake = trigger is None

    @property
    def is_exhausted(self) -> bool:
        """Whether the text is complete and nothing but its end can follow."""
        return self.is_awake and self._matcher.is_stopped() and not self._matcher.is_error()

    def mask(self) -> npt.NDArray[np.int32] | None:
        """The tokens that may come next, a bit each, or None where all may; valid until the next call.

        Raises: GenerationError where the grammar cannot go on.
        """
        if not self.is_awake:
            return None
        self.prepare()
        self._check()
        return self._mask

    def prepare(self) -> None:
        """Work the mask out ahead of its use, say while the device computes."""
        if self.is_awake and not self._is_ready:
            self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            self._is_ready = True

    def allows(self, tokens: Sequence[int]) -> bool:
        """Whether all of these tokens may come next, one after another."""
        return not self.is_awake or self._matcher.validate_tokens(list(tokens)) == len(tokens)

    def accept(self, token: int) -> None:
        """Take the token that was chosen. Raises: GenerationError for one that the grammar does not allow."""
        self._is_ready = False
        if self.is_awake:
            self._matcher.consume_token(token)
            self._check()
        elif self._watch is not None:
            text = self._texts[token] if 0 <= token < len(self._texts) else b""
            begun = self._watch.push(token, text)
            if begun is not None:
                self._watch = None
                self.is_awake = self._matcher.validate_tokens(begun) == len(begun)
                if self.is_awake:
                    self._matcher.consume_tokens(begun)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n")[0]
            raise GenerationError(f"the grammar of this answer cannot be followed any further: {reason}")
