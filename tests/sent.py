"""Prompts sent with a callback, and what came back."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from pyggml.engine import LLM, Delta, FinishReason, Submission

PATIENCE_S = 60.0


class Sent:
    """The answers to one prompt; `wait` for all of their ends."""

    def __init__(self, llm: LLM, prompt: str | Sequence[int], *, n: int = 1, **options: Any) -> None:
        names = ("prompt_logprobs", "time_limit_s", "cache_prompt", "first_index")
        sending = {name: options.pop(name) for name in names if name in options}
        self.deltas: list[Delta] = []
        self._n_left = n
        self._ended = threading.Event()
        self._came = threading.Condition()
        self.submission: Submission = llm.submit(
            prompt, llm.model.sampling(**{"temperature": 0, **options}), self._take, n=n, **sending
        )

    def _take(self, delta: Delta) -> None:
        with self._came:
            self.deltas.append(delta)
            self._n_left -= delta.finish_reason is not None
            self._came.notify_all()
        if not self._n_left:
            self._ended.set()

    def wait(self) -> Sent:
        assert self._ended.wait(PATIENCE_S), "an answer did not end"
        return self

    def wait_for_tokens(self, n: int) -> Sent:
        with self._came:
            assert self._came.wait_for(lambda: sum(len(d.ids) for d in self.deltas) >= n, PATIENCE_S)
        return self

    def ids(self, index: int = 0) -> list[int]:
        return [id for d in self.deltas if d.index == index for id in d.ids]

    def text(self, index: int = 0) -> str:
        return "".join(d.text for d in self.deltas if d.index == index)

    def end(self, index: int = 0) -> Delta:
        (last,) = (d for d in self.deltas if d.index == index and d.finish_reason is not None)
        return last

    def reason(self, index: int = 0) -> FinishReason | None:
        return self.end(index).finish_reason

    def n_cached(self, index: int = 0) -> int:
        stats = self.end(index).stats
        assert stats is not None, "the last delta has them"
        return stats.n_cached
