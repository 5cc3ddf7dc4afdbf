"""The engine process's side of each request: checks it, hands it to the engine, sends what comes back.

Takes messages on the event loop. Tokenizing, rendering and compiling of grammars run in threads; deltas come on the
engine's thread and leave through the outbox. Each Generate ends with a last Piece for every index or with one Failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pyggml.engine import (
    LLM,
    ChatPrompt,
    Delta,
    EngineError,
    GenerationError,
    PromptTooLong,
    QueueFull,
    RequestError,
    Submission,
    TemplateError,
)

from .answer_pieces import AnswerPieces
from .messages import (
    Accepted,
    Broken,
    Cancel,
    Chat,
    Condition,
    Detokenize,
    Done,
    Echo,
    Embed,
    Failed,
    Generate,
    Render,
    Status,
    ToEngine,
    Tokenize,
)
from .outbox import Outbox

WATCH_S = 1.0
KINDS: tuple[tuple[type[Exception], str], ...] = (
    (PromptTooLong, "too_long"),
    (TemplateError, "template"),
    (QueueFull, "queue_full"),
    (RequestError, "request"),
    (RecursionError, "request"),
    (GenerationError, "generation"),
    (EngineError, "engine"),
)


def kind_of(error: Exception) -> str:
    """The word by which the front tells errors apart."""
    return next((kind for type_, kind in KINDS if isinstance(error, type_)), "generation")


class Job:
    """What runs for one request; it may be cancelled while a thread is still handing it over."""

    def __init__(self) -> None:
        self._submissions: list[Submission] = []
        self._is_cancelled = False

    def add(self, submission: Submission) -> None:
        """The engine has taken a part."""
        self._submissions.append(submission)
        if self._is_cancelled:
            submission.cancel()

    def cancel(self) -> None:
        """End all parts."""
        self._is_cancelled = True
        for submission in list(self._submissions):
            submission.cancel()


class Answering:
    """All requests of one engine."""

    def __init__(self, llm: LLM, outbox: Outbox) -> None:
        self._llm = llm
        self._outbox = outbox
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: dict[int, Job] = {}
        self._watching: asyncio.Task[None] | None = None
        self._is_rebuilding = False
        self._fault: asyncio.Future[Broken] = asyncio.get_running_loop().create_future()

    async def fault(self) -> Broken:
        """Wait until the engine cannot go on; why."""
        return await self._fault

    def take(self, message: ToEngine) -> None:
        """Begin what a message asks for."""
        match message:
            case Cancel():
                if (job := self._jobs.pop(message.id, None)) is not None:
                    job.cancel()
            case Generate() | Embed():
                self._begin_job(message)
            case Tokenize():
                self._begin(message.id, lambda: Done(message.id, self._tokens(message)))
            case Detokenize():
                self._begin(message.id, lambda: Done(message.id, self._text(message.ids)))
            case Render():
                self._begin(message.id, lambda: Done(message.id, self._rendered(message.chat)))
            case Status():
                self._begin(message.id, lambda: Done(message.id, asdict(self._llm.status())))

    def _begin_job(self, asked: Generate | Embed) -> None:
        self._keep_watching()
        job = self._jobs[asked.id] = Job()
        if isinstance(asked, Generate):
            self._begin(asked.id, lambda: self._generate(asked, job))
        else:
            self._begin(asked.id, lambda: self._embed(asked, job))

    def _begin(self, id: int, work: Callable[[], Accepted | Done | None]) -> None:
        task = asyncio.ensure_future(self._done(id, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _done(self, id: int, work: Callable[[], Accepted | Done | None]) -> None:
        try:
            result = await asyncio.to_thread(work)
        except Exception as error:  # whatever it was, this request's client must hear of it
            self.failed(id, error)
        else:
            if result is not None:
                self._outbox.put(result)

    def failed(self, id: int, error: Exception) -> None:
        """A request cannot go on; from any thread."""
        if (job := self._jobs.pop(id, None)) is not None:
            job.cancel()
        self._outbox.put(Failed(id, kind_of(error), str(error) or type(error).__name__))
        self._look_for_fault()

    def _look_for_fault(self) -> None:
        try:
            status = self._llm.status()
        except Exception as error:  # an engine that cannot even tell how it is
            broken = Broken(f"the engine has failed ({type(error).__name__}: {error})")
        else:
            if status.state not in ("failed", "closed"):
                self._fault.get_loop().call_soon_threadsafe(self._tell_condition, status.state == "rebuilding")
                return
            reason = f"the engine has failed: {status.fault or 'it has ended'}"
            broken = Broken(reason, is_final=status.is_device_lost)
        self._fault.get_loop().call_soon_threadsafe(self._set_fault, broken)

    def _tell_condition(self, is_rebuilding: bool) -> None:
        if is_rebuilding != self._is_rebuilding:
            self._is_rebuilding = is_rebuilding
            self._outbox.put(Condition(is_rebuilding))
        if is_rebuilding:
            self._keep_watching()

    def _keep_watching(self) -> None:
        if self._watching is None or self._watching.done():
            self._watching = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        """While requests are open or ranks are built, look how the engine is: one that broke badly tells nobody."""
        while True:
            await asyncio.sleep(WATCH_S)
            if not self._jobs and not self._is_rebuilding:
                return
            self._look_for_fault()

    def _set_fault(self, broken: Broken) -> None:
        if not self._fault.done():
            self._fault.set_result(broken)

    def _ended(self, id: int) -> None:
        self._jobs.pop(id, None)

    def _generate(self, asked: Generate, job: Job) -> None:
        """Hand all prompts over; Accepted goes out before the first piece can."""
        llm, sampling = self._llm, asked.sampling
        given: list[list[int] | ChatPrompt]
        if asked.chat is None:
            given = [llm.tokenize(p) if isinstance(p, str) else p for p in asked.prompts]
        else:
            prompt = self._prompt(asked.chat, sampling)
            given, sampling = [prompt], prompt.sampling
        params = llm.model.sampling(**sampling)
        prompts = [p.ids if isinstance(p, ChatPrompt) else p for p in given]
        token_bytes = llm.model.tokenizer.token_bytes
        pieces = AnswerPieces(asked, prompts, token_bytes, self._outbox.put, self._ended, self.failed)
        if asked.echoes:
            for i, text in enumerate(asked.prompts):
                pieces.echo(i, Echo(text if isinstance(text, str) else self._text(text)))
        for i, one in enumerate(given):
            submission = llm.submit(
                one, params, pieces.take, n=asked.n, first_index=i * asked.n,
                prompt_logprobs=asked.prompt_logprobs is not None, time_limit_s=asked.max_seconds,
                cache_prompt=asked.cache_prompt,
            )  # fmt: skip
            job.add(submission)
        self._outbox.put(Accepted(asked.id, [len(ids) for ids in prompts]))
        pieces.open()

    def _embed(self, asked: Embed, job: Job) -> None:
        vectors: list[bytes] = [b""] * len(asked.prompts)
        n_open = len(vectors)
        n_tokens = 0

        def take(i: int, delta: Delta) -> None:
            nonlocal n_open
            if delta.embedding is None:
                self.failed(asked.id, delta.error or GenerationError("the text was not read to its end"))
                return
            vectors[i] = delta.embedding.astype("<f4").tobytes()
            n_open -= 1
            if not n_open:
                self._ended(asked.id)
                self._outbox.put(Done(asked.id, [vectors, n_tokens]))

        prompts = [self._llm.tokenize(p) if isinstance(p, str) else p for p in asked.prompts]
        n_tokens = sum(map(len, prompts))
        for i, ids in enumerate(prompts):
            job.add(self._llm.submit_embedding(ids, lambda delta, i=i: take(i, delta)))  # type: ignore[misc]

    def _prompt(self, chat: Chat, sampling: dict[str, Any]) -> ChatPrompt:
        return self._llm.chat_prompt(
            chat.messages, tools=chat.tools, tool_choice=chat.tool_choice,
            parallel_tool_calls=chat.parallel_tool_calls, response_format=chat.response_format,
            template=chat.variables, **sampling,
        )  # fmt: skip

    def _tokens(self, asked: Tokenize) -> list[Any]:
        ids = self._llm.tokenize(asked.text, add_special=asked.add_special, parse_special=asked.parse_special)
        return [ids, [self._llm.model.tokenizer.token_bytes(id) for id in ids]]

    def _text(self, ids: list[int]) -> str:
        return self._llm.model.tokenizer.decode(ids, skip_special=False)

    def _rendered(self, chat: Chat) -> list[Any]:
        prompt = self._prompt(chat, {})
        return [prompt.text, prompt.ids]
