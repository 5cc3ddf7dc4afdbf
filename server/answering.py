"""The engine process's side of each request: checks it, hands it to the engine, sends what comes back.

Takes messages on the event loop; tokenizing and rendering run in threads, deltas come on the engine's thread and leave
through the outbox. Each Generate ends with a last Piece for every index or with one Failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from pyggml.engine import LLM, EngineError, GenerationError, PromptTooLong, RequestError, TemplateError

from .answer_pieces import AnswerPieces
from .interim import submit
from .messages import (
    Accepted,
    Cancel,
    Chat,
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

KINDS: tuple[tuple[type[Exception], str], ...] = (
    (PromptTooLong, "too_long"),
    (TemplateError, "template"),
    (RequestError, "request"),
    (GenerationError, "generation"),
    (EngineError, "engine"),
)


def kind_of(error: Exception) -> str:
    """The word by which the front tells errors apart."""
    return next((kind for type_, kind in KINDS if isinstance(error, type_)), "generation")


class Answering:
    """All requests of one engine."""

    def __init__(self, llm: LLM, outbox: Outbox) -> None:
        self._llm = llm
        self._outbox = outbox
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._cancels: dict[int, Callable[[], None]] = {}
        self._fault: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def fault(self) -> str:
        """Wait until the engine cannot go on; why."""
        return await self._fault

    def _failed(self, id: int, error: Exception) -> None:
        kind = kind_of(error)
        self._outbox.put(Failed(id, kind, str(error)))
        if kind == "engine" and not self._fault.done():
            self._fault.set_result(str(error))

    def take(self, message: ToEngine) -> None:
        """Begin what a message asks for."""
        match message:
            case Cancel():
                self._cancel(message.id)
            case Generate():
                self._begin(message.id, self._generate(message))
            case Tokenize():
                self._begin(message.id, self._call(message.id, lambda: self._tokens(message)))
            case Detokenize():
                self._begin(message.id, self._call(message.id, lambda: self._text(message.ids)))
            case Render():
                self._begin(message.id, self._call(message.id, lambda: self._rendered(message.chat)))
            case Embed() | Status():
                self._outbox.put(Failed(message.id, "unsupported", "not built in"))

    def _begin(self, id: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[id] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    def _cancel(self, id: int) -> None:
        if (task := self._tasks.get(id)) is not None:
            task.cancel()
        if (cancel := self._cancels.pop(id, None)) is not None:
            cancel()

    async def _call(self, id: int, function: Callable[[], Any]) -> None:
        try:
            self._outbox.put(Done(id, await asyncio.to_thread(function)))
        except Exception as error:
            self._failed(id, error)

    async def _generate(self, asked: Generate) -> None:
        try:
            prompts = await asyncio.to_thread(self._prompts, asked)
            pieces = AnswerPieces(asked, self._llm.model.tokenizer.token_bytes, self._outbox.put, self._ended)
            if asked.echoes:
                for index in range(len(prompts) * asked.n):
                    prompt = asked.prompts[index // asked.n]
                    pieces.echo(index, Echo(prompt if isinstance(prompt, str) else self._text(prompt)))
            self._cancels[asked.id] = submit(self._llm, prompts, asked, pieces.take)
            self._outbox.put(Accepted(asked.id, [len(ids) for ids in prompts]))
        except Exception as error:
            self._failed(asked.id, error)

    def _ended(self, id: int) -> None:
        self._cancels.pop(id, None)

    def _prompts(self, asked: Generate) -> list[list[int]]:
        if asked.chat is not None:
            return [self._chat_ids(asked.chat)]
        return [self._llm.tokenize(p) if isinstance(p, str) else p for p in asked.prompts]

    def _chat_ids(self, chat: Chat) -> list[int]:
        return self._llm.chat_ids(chat.messages, tools=chat.tools, template=chat.variables)

    def _tokens(self, asked: Tokenize) -> list[Any]:
        ids = self._llm.tokenize(asked.text, add_special=asked.add_special, parse_special=asked.parse_special)
        return [ids, [self._llm.model.tokenizer.token_bytes(id) for id in ids]]

    def _text(self, ids: Sequence[int]) -> str:
        return self._llm.model.tokenizer.decode(ids, skip_special=False)

    def _rendered(self, chat: Chat) -> list[Any]:
        ids = self._chat_ids(chat)
        return [self._text(ids), ids]
