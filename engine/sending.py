"""Prompts on their way to the engine, with a callback or waited for: what a server calls, from any thread."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence

import numpy as np

from .chat_prompt import ChatPrompt
from .engine import Engine
from .errors import EngineError, RequestError
from .intake import Intake, Prompt
from .model import Model
from .prompt_reader import LogitReader, LogprobReader, PoolReader
from .request import Delta, FinishReason, Request
from .sampling_params import SamplingParams
from .submission import Submission

MAX_N = 128


class Sending:
    """The part of an LLM that hands prompts to its engine."""

    model: Model
    _engine: Engine
    _intake: Intake
    _is_closed: bool

    def submit(
        self,
        prompt: Prompt | ChatPrompt,
        params: SamplingParams,
        on_delta: Callable[[Delta], None],
        *,
        n: int = 1,
        first_index: int = 0,
        prompt_logprobs: bool = False,
        time_limit_s: float | None = None,
        cache_prompt: bool = True,
    ) -> Submission:
        """Hand a prompt to the engine; events of its `n` answers go to `on_delta`, on the engine's thread.

        `on_delta` must return quickly and not raise. The answers share the prompt's evaluation and differ by their
        random numbers. `prompt_logprobs` adds the log-probabilities of the prompt's tokens, each with `params.logprobs`
        others, to the first delta of the first answer. Answers are numbered from `first_index` on. After
        `time_limit_s`, queueing included, an answer ends with the reason TIME. Without `cache_prompt` nothing evaluated
        before is used.
        Raises RequestError, PromptTooLong, QueueFull; EngineError when the engine has ended.
        """
        if isinstance(n, bool) or not 1 <= n <= MAX_N:
            raise RequestError(f"n = {n!r}; 1 to {MAX_N} answers are possible")
        chat = prompt if isinstance(prompt, ChatPrompt) else None
        ids = self._intake.prompt_ids(prompt.ids if isinstance(prompt, ChatPrompt) else prompt)
        group = object()
        requests = []
        for i in range(n):
            reader = LogprobReader(ids, params.logprobs or 0) if prompt_logprobs and i == 0 else None
            request = self._intake.answer(
                ids, params, on_delta, index=first_index + i, choice=i, time_limit_s=time_limit_s, group=group,
                reuses_prefix=cache_prompt, reader=reader, chat=chat,
            )  # fmt: skip
            requests.append(request)
        self._engine.submit(requests)
        return Submission(requests, self._abort)

    def submit_embedding(
        self,
        prompt: Prompt,
        on_delta: Callable[[Delta], None],
        *,
        pooling: str | None = None,
        time_limit_s: float | None = None,
    ) -> Submission:
        """Hand a prompt to the engine for its vector, which comes as `embedding` of the only delta.

        `pooling` is mean, cls or last; by default what the model's file says, last where it says nothing.
        Raises as submit() does.
        """
        ids = self._intake.prompt_ids(prompt)
        reader = PoolReader(pooling or self.model.pooling or "last")
        request = self._intake.reading(ids, reader, on_delta, time_limit_s=time_limit_s)
        self._engine.submit([request])
        return Submission([request], self._abort)

    def embed(self, texts: str | Sequence[Prompt], *, pooling: str | None = None) -> np.ndarray:
        """Vectors of length 1 for texts or lists of token ids, float32 [n, n_embd]; for one text [n_embd]."""
        prompts: list[Prompt] = [texts] if isinstance(texts, str) else list(texts)
        found: queue.SimpleQueue[tuple[int, Delta]] = queue.SimpleQueue()
        vectors = np.empty((len(prompts), self.model.hparams.n_embd), np.float32)
        for i, prompt in enumerate(prompts):
            self.submit_embedding(prompt, lambda delta, i=i: found.put((i, delta)), pooling=pooling)  # type: ignore[misc]
        for _ in prompts:
            i, delta = found.get()
            if delta.embedding is None:
                raise delta.error or EngineError("the engine was closed before the vectors were made")
            vectors[i] = delta.embedding
        return vectors[0] if isinstance(texts, str) else vectors

    def score(
        self, tokens: Prompt, *, logits: bool = False, first: int = 0, chunk: int | None = None
    ) -> np.ndarray:
        """Log-probabilities of given tokens, or all logits.

        Shapes: [n_tokens - 1] float64, entry i for token i + 1 after tokens 0 to i; with `logits`
        [n_tokens, n_vocab] float32. Entries before `first` are left out, their logits not computed. `chunk` tokens
        are evaluated at a time, at most `batch`. It waits for its turn like any request.
        Raises PromptTooLong, RequestError.
        """
        ids = self._intake.prompt_ids(tokens)
        if chunk is not None and chunk < 1:
            raise RequestError(f"chunk = {chunk}; at least 1 is needed")
        if not 0 <= first < len(ids):
            raise RequestError(f"first = {first}; a position of the {len(ids)} tokens is needed")
        reader = LogitReader(ids, whole=logits, first=first, max_rows=chunk)
        ends: queue.SimpleQueue[Delta] = queue.SimpleQueue()
        request = self._intake.reading(ids, reader, ends.put)
        self._engine.submit([request])
        end = ends.get()
        if end.finish_reason is not FinishReason.LENGTH:
            raise end.error or EngineError("the engine was closed before the tokens were scored")
        return reader.result()

    def _abort(self, request: Request) -> None:
        if not self._is_closed:
            with contextlib.suppress(EngineError):  # an engine that has failed has ended it already
                self._engine.abort(request)
