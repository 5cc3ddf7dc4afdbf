"""One generation: what was asked, how far it is, and the events that its client gets.

The engine thread alone changes a Request after it was added. Every accepted request ends in exactly
one event with a `finish_reason`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import numpy as np

from pyggml import CHOSEN

from .formats.tools import ToolCallDelta
from .loop_finder import LoopFinder
from .sampler import Sampled, Sampler
from .sampling_params import SamplingParams
from .text_stream import TextStream


class RequestState(Enum):
    """Where a request is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a generation ended."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    ABORT = "abort"
    TIME = "time"
    REPETITION = "repetition"
    ERROR = "error"


@dataclass(frozen=True)
class Stats:
    """Counts and times of one finished request. `ttft_s` runs from its arrival to its first token."""

    n_prompt: int
    n_cached: int
    n_generated: int
    ttft_s: float
    prefill_s: float
    decode_s: float

    @property
    def prefill_tok_per_s(self) -> float:
        """Prompt tokens evaluated a second."""
        return (self.n_prompt - self.n_cached) / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tok_per_s(self) -> float:
        """Tokens generated a second after the first."""
        return (self.n_generated - 1) / self.decode_s if self.decode_s > 0 and self.n_generated > 1 else 0.0


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token, its log-probability and the likeliest tokens at its place."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Delta:
    """What one step added to an answer.

    `text` may be empty while a character or a possible stop string is incomplete. The last delta
    has `finish_reason` and `stats`, `error` when that is ERROR, and `stop_text` where a stop string ended the answer.
    `index` tells the prompt of a batch, or the answer of several to one prompt. The first delta has `prompt_logprobs`
    where they were asked for, an entry for each prompt token but the first; the last one of a prompt that was to be
    embedded has `embedding`.
    In a conversation `text` is content alone; `reasoning` and pieces of `tool_calls` are apart.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    error: Exception | None = None
    index: int = 0
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    embedding: np.ndarray | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    stop_text: str | None = None


class PromptReader(Protocol):
    """What is given the results of all prompt tokens: logits, or with `wants_hidden` hidden states.

    Those from position `first` on, at most `max_rows` at a time where that is a number. How much is evaluated at a time
    decides the last bits of results; with `is_steady` it does not depend on how long steps take.
    """

    wants_hidden: bool
    first: int
    is_steady: bool
    max_rows: int | None

    def take(self, start: int, rows: np.ndarray) -> None:
        """Results of the tokens from `start` on."""

    def told(self) -> dict[str, Any]:
        """The fields of a Delta that it fills once the prompt was read."""


@dataclass(eq=False)
class Request:
    """A prompt being answered. `n_past` of its tokens are in the cache of `slot`.

    `reader` is given results of prompt tokens, which are then all evaluated. `group` is the same for answers
    to one prompt, which share its evaluation. Once the first `n_store` tokens are evaluated they go to disk. It ends
    after `deadline_s` (of time.perf_counter).
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    sampler: Sampler
    text: TextStream
    emit: Callable[[Delta], None]
    max_new: int
    stop_ids: frozenset[int]
    index: int = 0
    reader: PromptReader | None = None
    group: object | None = None
    reuses_prefix: bool = True
    deadline_s: float | None = None
    on_finish: Callable[[Request], None] | None = None
    state: RequestState = RequestState.WAITING
    slot: int | None = None
    n_past: int = 0
    n_cached: int = 0
    n_store: int = 0
    has_failed: bool = False
    output_ids: list[int] = field(default_factory=list)
    arrived_s: float = field(default_factory=time.perf_counter)
    started_s: float = 0.0
    first_token_s: float = 0.0
    _untold: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ids = np.asarray(self.prompt_ids, np.int32)
        self._loops = LoopFinder(self.params.loop_limit) if self.params.loop_limit else None
        self._is_looping = False

    @property
    def is_finished(self) -> bool:
        """Whether the last event was sent."""
        return self.state is RequestState.FINISHED

    @property
    def n_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the last prompt token is left; unless the prompt is read, that counts as decoding."""
        return self.n_past < len(self.prompt_ids) - (self.reader is None)

    @property
    def takes_the_likeliest(self) -> bool:
        """Whether its next token is the likeliest one, and surely among the few that a device finds by itself."""
        return self.sampler.takes_the_likeliest and self.sampler.is_served_by(CHOSEN)

    @property
    def n_left(self) -> int:
        """Prompt tokens that are not evaluated yet."""
        return len(self.prompt_ids) - self.n_past

    @property
    def last_id(self) -> int:
        """The last token of prompt and answer."""
        return self.output_ids[-1] if self.output_ids else self.prompt_ids[-1]

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens of prompt and answer by position."""
        n = len(self.prompt_ids)
        return [*self.prompt_ids[start:min(stop, n)], *self.output_ids[max(start - n, 0):max(stop - n, 0)]]  # fmt: skip

    def begin(self, slot: int, n_cached: int) -> None:
        """Take a slot whose cache already holds the first n_cached tokens."""
        self.slot, self.n_past, self.n_cached = slot, n_cached, n_cached
        self.state = RequestState.RUNNING
        self.started_s = time.perf_counter()

    def read(self, start: int, rows: np.ndarray) -> None:
        """Hand the results of prompt tokens to the reader; finish where no answer is wanted."""
        assert self.reader is not None, "somebody reads the prompt"
        self.reader.take(start, rows)
        if start + len(rows) == len(self.prompt_ids):
            self._untold = self.reader.told()
            if self.max_new == 0:
                self.finish(FinishReason.LENGTH)

    def take(self, sampled: Sampled) -> bool:
        """Take the next token; whether it is still to be told.

        What may end the answer is told at once, so that a request that is told later goes on.
        """
        if sampled.error is not None:
            self.finish(FinishReason.ERROR, error=sampled.error)
            return False
        self.first_token_s = self.first_token_s or time.perf_counter()
        self.output_ids.append(sampled.id)
        self._is_looping = self._loops is not None and self._loops.push(sampled.id)
        goes_on = (
            sampled.id not in self.stop_ids
            and not self._is_looping
            and not self.params.stop
            and not self.is_complete
            and len(self.output_ids) < self.max_new
        )
        if not goes_on:
            self.tell(sampled)
        return goes_on

    def tell(self, sampled: Sampled) -> None:
        """Send the text of a token that was taken, and finish where it ends the answer."""
        logprobs: tuple[TokenLogprob, ...] = ()
        if sampled.logprob is not None:
            logprobs = (TokenLogprob(sampled.id, sampled.logprob, sampled.top),)
        if sampled.id in self.stop_ids:
            self.finish(FinishReason.STOP, ids=(sampled.id,), logprobs=logprobs)
            return
        text = self.text.push(sampled.id)
        if self.text.stopped:
            self.finish(FinishReason.STOP, text, (sampled.id,), logprobs)
        elif self.params.ignore_eos and self.is_complete:
            self.finish(FinishReason.STOP, text, (sampled.id,), logprobs)
        elif self._is_looping:
            self.finish(FinishReason.REPETITION, text, (sampled.id,), logprobs)
        elif len(self.output_ids) >= self.max_new:
            self.finish(FinishReason.LENGTH, text, (sampled.id,), logprobs)
        else:
            self.emit(Delta(text, (sampled.id,), logprobs, index=self.index, **self._tell()))

    def _tell(self) -> dict[str, Any]:
        untold, self._untold = self._untold, {}
        return untold

    @property
    def is_complete(self) -> bool:
        """Whether the answer's grammar allows nothing more."""
        constraint = self.sampler.constraint
        return constraint is not None and constraint.is_exhausted

    def finish(
        self,
        reason: FinishReason,
        text: str = "",
        ids: tuple[int, ...] = (),
        logprobs: tuple[TokenLogprob, ...] = (),
        error: Exception | None = None,
    ) -> None:
        """Send the one terminal event, after `on_finish` gave back what the request had; a second call does nothing."""
        if self.state is RequestState.FINISHED:
            return
        self.state = RequestState.FINISHED
        text += self.text.finish()
        if reason is FinishReason.LENGTH and self.text.stopped:
            reason = FinishReason.STOP  # the text held back until now completes a stop string
        self.has_failed = reason is FinishReason.ERROR
        on_finish, self.on_finish = self.on_finish, None
        if on_finish is not None:
            on_finish(self)
        stop_text = self.text.stop_text if reason is FinishReason.STOP else None
        self.emit(
            Delta(text, ids, logprobs, reason, self._stats(), error, self.index, stop_text=stop_text, **self._tell())
        )

    def _stats(self) -> Stats:
        now = time.perf_counter()
        first = self.first_token_s or now
        started = self.started_s or now
        return Stats(
            n_prompt=len(self.prompt_ids),
            n_cached=self.n_cached,
            n_generated=len(self.output_ids),
            ttft_s=first - self.arrived_s,
            prefill_s=first - started,
            decode_s=now - first,
        )
