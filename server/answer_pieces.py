"""Deltas of one request as the messages that the front gets: one a step, or one an answer.

Deltas come on the engine's thread, and may come before the request's other prompts are handed over: they are held until
`open`, so that the front hears first that the request was accepted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pyggml.engine import Delta, Stats, TokenLogprob

from .messages import CallPiece, Counts, Echo, FromEngine, Generate, Piece, TokenScore


class AnswerPieces:
    """Takes the deltas of a request. The first error ends all of its answers, and `failed` is told."""

    def __init__(
        self,
        asked: Generate,
        prompts: Sequence[Sequence[int]],
        token_bytes: Callable[[int], bytes],
        send: Callable[[FromEngine], None],
        ended: Callable[[int], None],
        failed: Callable[[int, Exception], None],
    ) -> None:
        self._asked, self._prompts, self._token_bytes = asked, prompts, token_bytes
        self._send, self._ended, self._failed = send, ended, failed
        self._gathered: dict[int, Piece] = {}
        self._n_open = asked.n * len(prompts)
        self._has_failed = False
        self._echoes: dict[int, Echo] = {}
        self._held: list[Delta] | None = []
        self._lock = threading.Lock()

    def echo(self, prompt: int, echo: Echo) -> None:
        """Have the first piece of each answer to a prompt carry it."""
        for index in range(prompt * self._asked.n, (prompt + 1) * self._asked.n):
            self._echoes[index] = Echo(echo.text)

    def open(self) -> None:
        """Send what was held, and from now on each delta as it comes."""
        with self._lock:
            held, self._held = self._held or [], None
            for delta in held:
                self._pass(delta)

    def take(self, delta: Delta) -> None:
        """Take a delta of one of the answers."""
        with self._lock:
            if self._held is not None:
                self._held.append(delta)
            else:
                self._pass(delta)

    def _pass(self, delta: Delta) -> None:
        if delta.finish_reason is not None:
            self._n_open -= 1
            if not self._n_open:
                self._ended(self._asked.id)
        if self._has_failed:
            return
        if delta.error is not None:
            self._has_failed = True
            self._failed(self._asked.id, delta.error)
            return
        piece = self._piece(delta)
        if self._asked.tells_each:
            self._send(piece)
        else:
            self._gather(piece)

    def _gather(self, piece: Piece) -> None:
        whole = self._gathered.setdefault(piece.index, piece)
        if whole is not piece:
            whole.text += piece.text
            whole.reasoning += piece.reasoning
            whole.calls += piece.calls
            whole.n_reasoning += piece.n_reasoning
            whole.ids += piece.ids
            whole.scores += piece.scores
            whole.finish_reason, whole.counts = piece.finish_reason, piece.counts
            whole.stop_text = piece.stop_text
        if whole.finish_reason is not None:
            self._send(self._gathered.pop(piece.index))

    def _piece(self, delta: Delta) -> Piece:
        reason, index = delta.finish_reason, delta.index
        if delta.prompt_logprobs is not None:
            self._score_prompt(index, delta.prompt_logprobs)
        return Piece(
            self._asked.id,
            index,
            delta.text,
            list(delta.ids),
            [self._score(entry) for entry in delta.logprobs],
            None if reason is None else reason.value,
            None if delta.stats is None else counts_of(delta.stats),
            self._echoes.pop(index, None),
            delta.reasoning,
            [CallPiece(call.index, call.arguments, call.id, call.name) for call in delta.tool_calls],
            len(delta.ids) if delta.reasoning and not delta.text else 0,
            delta.stop_text,
        )

    def _score_prompt(self, index: int, entries: Sequence[TokenLogprob]) -> None:
        """Put a prompt's scores where its answers have not begun; the first token has none."""
        prompt, n = index // self._asked.n, self._asked.n
        first = self._prompts[prompt][0]
        scores = [TokenScore(first, self._token_bytes(first), None), *map(self._score, entries)]
        for other in range(prompt * n, (prompt + 1) * n):
            if (echo := self._echoes.get(other)) is not None:
                echo.scores = scores

    def _score(self, entry: TokenLogprob) -> TokenScore:
        data = self._token_bytes
        return TokenScore(entry.id, data(entry.id), entry.logprob, [(id, data(id), p) for id, p in entry.top])


def counts_of(stats: Stats) -> Counts:
    """The statistics in the form that is sent."""
    return Counts(
        stats.n_prompt, stats.n_cached, stats.n_generated, stats.ttft_s, stats.prefill_s, stats.decode_s
    )
