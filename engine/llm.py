"""LLM: a model file, ready to answer.

    with LLM("model.gguf", ctx=4096) as llm:
        for delta in llm.chat([{"role": "user", "content": "Why?"}], stream=True):
            print(delta.text, end="")
        texts = llm.generate(["a", "b", "c"], max_tokens=32)

Threads: any thread may call; answers are computed on the engine's own thread. Memory: weights and
cache live until close().
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, overload

from .chat_format import ChatFormat
from .chat_prompt import ChatPrompt
from .chat_template import ChatTemplate
from .engine import Engine
from .errors import TemplateError
from .grammar_compiler import GrammarCompiler
from .intake import Intake, Prompt
from .load_options import LoadOptions
from .model import Model
from .model_files import find_model
from .observation import observe
from .pace import MAX_GAP_MS, check_gap
from .placement import Placements
from .prefix_cache import PrefixCache
from .probe import Probe
from .rig import Rig
from .room import room
from .runner_stats import RunnerStats
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sending import Sending
from .status import EngineStatus
from .stream import Completion, Stream
from .weights import Progress

Messages = Sequence[Mapping[str, Any]]


class LLM(Sending):
    """A model on one device or several.

    `tp` cuts every layer over that many devices, `layer_split` puts whole layers on that many;
    `device` names them ("cuda:0,cuda:1"; one may come more than once), `tensor_split` gives their shares.
    `ctx` is the limit of one request in tokens, by default the largest that fits; `parallel` the
    number of requests that run together; `batch` the most prompt tokens of one step,
    on cards by default as many as are fastest; cache types are
    f32, f16, bf16, q8_0 and q4_0. A model that does not fit is refused with the options that would
    fit; with `fit` "auto" the first of them are taken.
    `reserve` are MiB that stay free on each device: a number for all, or a list with one a device.
    `transport` is how ranks exchange sums: push, nccl, push-shm, nccl-shm or host, by default as measured;
    `reduce_dtype` f32, bf16 or f16 is what large sums travel as. Without `cuda_graphs` every step launches
    its kernels one by one.
    With `prefix_cache` a prompt takes what earlier ones with the same beginning left; beginnings that many share
    are kept in files of `prefix_cache_dir`, at most `prefix_cache_bytes` in all.
    At most `max_queued` requests wait for a slot, by default any number. While answers are made, a step with prompt
    tokens takes about `max_gap_ms` at most.
    `progress(done_bytes, total_bytes)` is called while loading.
    `chat_template` is the text of a template to use in place of the file's. A Model that is given is
    closed with the LLM.
    Raises ConfigError, ModelError, GGUFError or DeviceError before any weight is read, and PlanError or AllocationError
    where it does not fit.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | Model,
        *,
        device: str | None = None,
        tp: int | None = None,
        layer_split: int | None = None,
        tensor_split: str | None = None,
        expert_split: str = "inside",
        ctx: int | None = None,
        parallel: int = 4,
        batch: int | None = None,
        threads: int | None = None,
        cache_type_k: str = "f16",
        cache_type_v: str = "f16",
        fit: str | None = None,
        reserve: int | str | Sequence[int] | None = None,
        transport: str | None = None,
        reduce_dtype: str = "f32",
        cuda_graphs: bool = True,
        prefix_cache: bool = True,
        prefix_cache_dir: str | os.PathLike[str] | None = None,
        prefix_cache_bytes: int = 4 << 30,
        max_queued: int | None = None,
        max_gap_ms: float = MAX_GAP_MS,
        chat_template: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        options = LoadOptions(
            device=device, tp=tp, layer_split=layer_split, tensor_split=tensor_split,
            expert_split=expert_split, ctx=ctx, parallel=parallel, batch=batch, threads=threads,
            cache_type_k=cache_type_k, cache_type_v=cache_type_v, fit=fit, reserve=reserve,
            transport=transport, reduce_dtype=reduce_dtype, cuda_graphs=cuda_graphs,
        )  # fmt: skip
        self._is_closed = True
        self.model = model if isinstance(model, Model) else Model(find_model(model, lambda: room(options)))
        try:
            self._given_template = None if chat_template is None else self._template(chat_template)
            check_gap(max_gap_ms)
            folder = prefix_cache_dir if prefix_cache else None
            rig = Rig(self.model, options, progress, prefix_dir=folder, prefix_bytes=prefix_cache_bytes)
        except BaseException:
            self.model.close()
            raise
        self._loaded, self._runner = rig.loaded, rig.runner
        self.n_ctx = self._loaded.n_ctx
        grammars = GrammarCompiler(self.model.tokenizer, self.model.hparams.n_vocab)
        self._intake = Intake(self.model, self.n_ctx, grammars)
        cache = PrefixCache(parallel, rig.rows, is_on=prefix_cache)
        self._scheduler = Scheduler(cache, self._runner.limits, parallel, max_gap_ms)
        # The engine knows the rig but not this object, which may be dropped.
        self._engine = Engine(self._scheduler, self._runner, rig.close, rig.rebuild, max_queued=max_queued)
        self.probe = Probe(self.model, self._loaded, self._runner, self._engine, threads)
        self._is_closed = False

    def _template(self, source: str) -> ChatTemplate | None:
        template = ChatTemplate.from_gguf({"tokenizer.chat_template": source}, self.model.tokenizer)
        if template is not None and template.syntax_error is not None:
            raise TemplateError(
                f"the chat template that was given has a syntax error: {template.syntax_error}"
            )
        return template

    @property
    def plan(self) -> Placements:
        """What lies where, in bytes."""
        return Placements(self._loaded.placements)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why it lies as it does, a line each: the mode, where shares come from, what limits the context."""
        return self._loaded.notes

    @property
    def stats(self) -> RunnerStats:
        """Steps, plans and times since the start."""
        return self._runner.stats

    def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids of a text, with the file's BOS and EOS rules and special tokens read as such."""
        return self.model.tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids; special tokens give none."""
        return self.model.tokenizer.decode(ids)

    @overload
    def chat(self, messages: Messages, *, stream: Literal[False] = False, **options: Any) -> Completion: ...
    @overload
    def chat(self, messages: Messages, *, stream: Literal[True], **options: Any) -> Stream: ...
    def chat(
        self,
        messages: Messages,
        *,
        stream: bool = False,
        **options: Any,
    ) -> Completion | Stream:
        """Answer a conversation with the file's chat template; options are chat_prompt's.

        Reasoning and calls of tools are apart from the text. Raises TemplateError, RequestError.
        """
        prompt = self.chat_prompt(messages, **options)
        answers = self._start([prompt.ids], self.model.sampling(**prompt.sampling), tells_each=stream, chat=prompt)
        return answers if stream else _join(answers)[0]

    def chat_prompt(self, messages: Messages, **options: Any) -> ChatPrompt:
        """A conversation ready for submit(), whose SamplingParams are made from its `sampling`.

        `tools`, `tool_choice` ("auto", "none", "required" or a function), `parallel_tool_calls` and
        `response_format` are OpenAI's; `template` has further variables for the template (`enable_thinking`);
        all others are fields of SamplingParams. What messages say never becomes a special token. Raises
        TemplateError for a base model or messages that the template refuses, RequestError.
        """
        return ChatPrompt.rendered(self.chat_format, self.model.tokenizer, messages, **options)

    @cached_property
    def chat_format(self) -> ChatFormat:
        """How the model's answers in conversations are written. Raises TemplateError for a base model."""
        return ChatFormat.from_model(self.model, self._given_template)

    def chat_ids(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a rendered conversation; what messages say never becomes a special token."""
        return self.chat_prompt(messages, tools=tools, template=template).ids

    @overload
    def generate(self, prompts: str, *, stream: Literal[False] = False, **options: Any) -> Completion: ...
    @overload
    def generate(
        self, prompts: Sequence[Prompt], *, stream: Literal[False] = False, **options: Any
    ) -> list[Completion]: ...
    @overload
    def generate(
        self, prompts: str | Sequence[Prompt], *, stream: Literal[True], **options: Any
    ) -> Stream: ...
    def generate(self, prompts: str | Sequence[Prompt], *, stream: bool = False, **sampling: Any) -> Any:
        """Continue a prompt, or each of a list of prompts (texts or lists of token ids) as one batch.

        A string gives one Completion, a list a list; with `stream` the deltas of all as they come,
        told apart by `index`. `sampling` are the fields of SamplingParams.
        """
        single = isinstance(prompts, str)
        texts: list[Prompt] = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [self._intake.prompt_ids(p) for p in texts]
        answers = self._start(ids, self.model.sampling(**sampling), tells_each=stream)
        if stream:
            return answers
        completions = _join(answers)
        return completions[0] if single else completions

    def _start(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        *,
        tells_each: bool,
        chat: ChatPrompt | None = None,
    ) -> Stream:
        stream = Stream(self._abort, tells_each=tells_each)
        emit = stream.emit
        requests = [self._intake.answer(ids, params, emit, index=i, chat=chat) for i, ids in enumerate(prompts)]
        for request in requests:
            stream.add(request)
        self._engine.submit(requests)
        return stream

    def status(self) -> EngineStatus:
        """How the engine stands, without waiting for it."""
        return observe(self._engine, self._runner, self._loaded, is_closed=self._is_closed)

    def close(self) -> None:
        """End what is running and free all memory. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        self._engine.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True) and not sys.is_finalizing():
            self.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _join(stream: Stream) -> list[Completion]:
    for _ in stream:
        pass
    return stream.completions
