"""Answers under way and finished: counts and times for metrics, the status page and the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .answer import Answer
from .messages import Counts, Piece
from .metrics import Metrics

SMOOTHING = 0.1


class Followed:
    """What is noted of one request while its pieces pass."""

    def __init__(self, metrics: Metrics, record: dict[str, Any]) -> None:
        self._metrics = metrics
        self._record = record
        self._start_s = time.perf_counter()
        self._last_s = self._start_s
        self._seen_first = False
        self.finished: list[tuple[str, Counts]] = []
        self.texts: dict[int, str] = {}

    def note(self, piece: Piece) -> None:
        """A piece has been received."""
        self.texts[piece.index] = self.texts.get(piece.index, "") + piece.text
        now = time.perf_counter()
        if piece.ids and not self._seen_first:
            self._seen_first = True
            first_s = now - self._start_s if piece.counts is None else piece.counts.ttft_s  # it came as one piece
            self._metrics.time_to_first_token.observe(first_s)
            self._record["ttft_s"] = round(first_s, 4)
        elif piece.ids:
            self._metrics.inter_token.observe(now - self._last_s)
        self._last_s = now
        if piece.finish_reason is not None and piece.counts is not None:
            self.finished.append((piece.finish_reason, piece.counts))
            self._metrics.finished(piece.finish_reason, piece.counts)

    @property
    def n_tokens(self) -> int:
        """Tokens of prompts and answers."""
        return sum(c.n_prompt - c.n_cached + c.n_generated for _, c in self.finished)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start_s


class Traffic:
    """All answers of a server."""

    def __init__(self, model: str) -> None:
        self.metrics = Metrics(model)
        self.n_open = 0
        self.n_finished = 0
        self.mean_s = 1.0

    @contextmanager
    def open(self, n: int) -> Iterator[None]:
        """Count n answers while they are made."""
        start_s = time.perf_counter()
        self.n_open += n
        try:
            yield
        finally:
            self.n_open -= n
            self.n_finished += 1
            self.mean_s += SMOOTHING * (time.perf_counter() - start_s - self.mean_s)

    @contextmanager
    def follow(self, answer: Answer, record: dict[str, Any]) -> Iterator[Followed]:
        """Note what passes of an answer until its end."""
        followed = Followed(self.metrics, record)
        answer.watch = followed.note
        try:
            yield followed
        finally:
            self.metrics.end_to_end.observe(followed.elapsed_s)
            if not answer.is_over:
                self.metrics.cancelled()
            self._record(followed, answer, record)

    def _record(self, followed: Followed, answer: Answer, record: dict[str, Any]) -> None:
        counts = [c for _, c in followed.finished]
        record["n_prompt"] = sum(answer.n_prompt)
        record["n_cached"] = sum(c.n_cached for c in counts)
        record["n_generated"] = sum(c.n_generated for c in counts)
        record["finish_reasons"] = [reason for reason, _ in followed.finished] or None
        decode_s = sum(c.decode_s for c in counts)
        n_after = sum(max(0, c.n_generated - 1) for c in counts)
        record["tok_per_s"] = round(n_after / decode_s, 2) if decode_s > 0 else None
