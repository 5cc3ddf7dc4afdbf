"""Deltas of one request as the messages that the front gets: one a step, or one an answer."""

from __future__ import annotations

from collections.abc import Callable

from pyggml.engine import Delta, FinishReason, Stats, TokenLogprob

from .messages import Counts, Echo, Failed, FromEngine, Generate, Piece, TokenScore


class AnswerPieces:
    """Takes the deltas of a request on the engine's thread. The first error ends all of its answers."""

    def __init__(
        self,
        asked: Generate,
        token_bytes: Callable[[int], bytes],
        send: Callable[[FromEngine], None],
        ended: Callable[[int], None],
    ) -> None:
        self._asked = asked
        self._token_bytes = token_bytes
        self._send = send
        self._ended = ended
        self._gathered: dict[int, Piece] = {}
        self._n_open = asked.n * max(1, len(asked.prompts))
        self._has_failed = False
        self._echoes: dict[int, Echo] = {}

    def echo(self, index: int, echo: Echo) -> None:
        """Have the first piece of an answer carry its prompt."""
        self._echoes[index] = echo

    def take(self, index: int, delta: Delta) -> None:
        """Send a delta of the answer `index`, or keep it for the answer's end."""
        if delta.finish_reason is not None:
            self._n_open -= 1
            if not self._n_open:
                self._ended(self._asked.id)
        if delta.error is not None:
            if not self._has_failed:
                self._has_failed = True
                self._send(Failed(self._asked.id, "generation", str(delta.error)))
            return
        piece = self._piece(index, delta)
        if self._asked.tells_each:
            self._send(piece)
            return
        whole = self._gathered.setdefault(index, piece)
        if whole is not piece:
            whole.text += piece.text
            whole.ids += piece.ids
            whole.scores += piece.scores
            whole.finish_reason, whole.counts = piece.finish_reason, piece.counts
        if whole.finish_reason is not None:
            self._send(self._gathered.pop(index))

    def _piece(self, index: int, delta: Delta) -> Piece:
        reason: FinishReason | None = delta.finish_reason
        return Piece(
            self._asked.id,
            index,
            delta.text,
            list(delta.ids),
            [self._score(entry) for entry in delta.logprobs],
            None if reason is None else reason.value,
            None if delta.stats is None else counts_of(delta.stats),
            self._echoes.pop(index, None),
        )

    def _score(self, entry: TokenLogprob) -> TokenScore:
        data = self._token_bytes
        return TokenScore(entry.id, data(entry.id), entry.logprob, [(id, data(id), p) for id, p in entry.top])


def counts_of(stats: Stats) -> Counts:
    """The statistics in the form that is sent."""
    return Counts(
        stats.n_prompt, stats.n_cached, stats.n_generated, stats.ttft_s, stats.prefill_s, stats.decode_s
    )
