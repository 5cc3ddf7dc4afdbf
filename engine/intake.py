"""From what a caller asks to a Request that can run: checks that need the model, in the caller's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .chat_prompt import ChatPrompt
from .detokenizer import Detokenizer
from .errors import PromptTooLong, RequestError
from .grammar_compiler import GrammarCompiler
from .model import Model
from .request import Delta, PromptReader, Request
from .sampler import Sampler
from .sampling_params import SamplingParams
from .text_stream import TextStream

Prompt = str | Sequence[int]


class Intake:
    """Makes the requests of one model, whose context takes n_ctx tokens. Any thread may call."""

    def __init__(self, model: Model, n_ctx: int, grammars: GrammarCompiler) -> None:
        self._model = model
        self._grammars = grammars
        self.n_ctx = n_ctx

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Raises RequestError for anything else than a text or ids of the vocabulary."""
        if isinstance(prompt, str):
            ids: Sequence[int] = self._model.tokenizer.encode(prompt)
        else:
            try:
                ids = list(prompt)
            except TypeError:
                raise RequestError(f"the prompt is {prompt!r}; a text or a list of token ids is needed") from None
        self._check_ids(ids)
        return list(ids)

    def _check_ids(self, ids: Sequence[int]) -> None:
        n_vocab = self._model.hparams.n_vocab
        if not ids:
            raise RequestError("the prompt has no tokens; give at least one")
        for id in ids:
            if isinstance(id, bool) or not isinstance(id, (int, np.integer)):
                raise RequestError(f"token id {id!r}; token ids are whole numbers")
            if not 0 <= id < n_vocab:
                raise RequestError(f"token id {id} is outside of the vocabulary of {n_vocab}")

    def answer(
        self,
        ids: list[int],
        params: SamplingParams,
        emit: Callable[[Delta], None],
        *,
        index: int = 0,
        choice: int | None = None,
        time_limit_s: float | None = None,
        chat: ChatPrompt | None = None,
        **fields: Any,
    ) -> Request:
        """A request for an answer to token ids; `choice`, by default the index, decides its random numbers.

        The answer to a conversation (`chat`) is read as the model's format says.
        Raises PromptTooLong where no token of an answer fits behind the prompt.
        """
        tokenizer, n_vocab = self._model.tokenizer, self._model.hparams.n_vocab
        room = self.n_ctx - len(ids)
        if room < 1:
            raise PromptTooLong(
                f"the prompt has {len(ids)} tokens; with a context of {self.n_ctx} at most {self.n_ctx - 1} fit"
            )
        shown: frozenset[int] = frozenset() if chat is None else chat.format.shown_ids
        banned = [id for id in tokenizer.stop_ids if id < n_vocab] if params.ignore_eos else []
        return Request(
            prompt_ids=ids,
            params=params,
            sampler=Sampler(
                params, n_vocab=n_vocab, prompt_ids=ids, index=index if choice is None else choice, banned=banned,
                constraint=self._grammars.constraint(params),
            ),  # fmt: skip
            text=TextStream(Detokenizer(tokenizer, shown=shown), params.stop),
            emit=emit if chat is None else chat.reads(emit),
            max_new=room if params.max_tokens is None else min(room, params.max_tokens),
            stop_ids=frozenset() if params.ignore_eos else tokenizer.stop_ids,
            index=index,
            deadline_s=_deadline(time_limit_s),
            **fields,
        )

    def reading(
        self,
        ids: list[int],
        reader: PromptReader,
        emit: Callable[[Delta], None],
        *,
        time_limit_s: float | None = None,
    ) -> Request:
        """A request that evaluates a prompt for its reader and makes no answer.

        Raises PromptTooLong where the prompt does not fit.
        """
        if len(ids) > self.n_ctx:
            raise PromptTooLong(f"{len(ids)} tokens do not fit a context of {self.n_ctx}")
        params = SamplingParams(temperature=0)
        return Request(
            prompt_ids=ids,
            params=params,
            sampler=Sampler(params, n_vocab=self._model.hparams.n_vocab),
            text=TextStream(Detokenizer(self._model.tokenizer)),
            emit=emit,
            max_new=0,
            stop_ids=frozenset(),
            reader=reader,
            deadline_s=_deadline(time_limit_s),
        )


def _deadline(time_limit_s: float | None) -> float | None:
    if time_limit_s is None:
        return None
    if not time_limit_s > 0:
        raise RequestError(f"a time limit of {time_limit_s!r} s; a number above 0 is needed")
    return time.perf_counter() + time_limit_s
