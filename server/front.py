"""What all handlers share: the engine, the options, who may ask and how many at once.

`Front.answer` is the one way to an answer: it admits a request, starts it, and sees to its end, its metrics and its log
line, however it ends.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from aiohttp import web

from .answer import Answer
from .api_keys import Key, KeyRing
from .body import decoded, read_body
from .engine_link import State
from .errors import BadRequest, NotFound, TooMany
from .messages import Generate
from .options import ServerOptions
from .replicas import Replicas
from .response_store import ResponseStore
from .traffic import Traffic

T = TypeVar("T")
KEY = web.RequestKey("key", Key)
RECORD = web.RequestKey("record", dict)


class Front:
    """One server. `names` are those under which its model is served, `fingerprint` tells its build and model."""

    def __init__(
        self, options: ServerOptions, link: Replicas, keys: KeyRing, store: ResponseStore, names: tuple[str, ...]
    ) -> None:
        self.options, self.link, self.keys, self.store, self.names = options, link, keys, store, names
        self.traffic = Traffic(names[0])
        self.started_s = int(time.time())
        self.fingerprint = f"pyggml-{names[0]}"
        self.is_stopping = False
        self.engine_statuses: dict[int, dict[str, Any]] = {}

    async def read(self, request: web.Request, type_: type[T]) -> T:
        """The request's body as its type. Raises BadRequest or TooLarge."""
        options = self.options
        return decoded(await read_body(request, options.read_timeout_s, options.max_body_bytes), type_)

    def model_name(self, asked: str | None) -> str:
        """The served name that an answer carries. Raises NotFound for a name that is not served."""
        if asked is None or asked in self.names:
            return asked or self.names[0]
        if self.options.any_model:
            return self.names[0]
        raise NotFound(
            f"the model {asked[:100]!r} is not served here; served: {', '.join(self.names)}",
            param="model", code="model_not_found",
        )  # fmt: skip

    @property
    def facts(self) -> dict[str, Any]:
        """What the model is. Raises Unavailable until it has been loaded once."""
        if not self.link.facts:
            raise self.link.unavailable()
        return self.link.facts

    def check_chat(self) -> None:
        """Raise BadRequest where the model cannot chat."""
        if self.link.facts and not self.link.facts["has_chat_template"]:
            raise BadRequest(
                f"{self.names[0]} has no chat template (a base model): start the server with --chat-template FILE, "
                "or use /v1/completions (with Ollama's API, raw: true)",
                code="no_chat_template",
            )

    def sampling(self, request: web.Request, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling of a request under the caps of its key."""
        key: Key | None = request.get(KEY)
        cap = None if key is None else key.caps.max_tokens
        asked = chosen.get("max_tokens")
        return {**chosen, "max_tokens": asked if cap is None else min(cap, asked if asked is not None else cap)}

    @contextmanager
    def admitted(self, request: web.Request, n: int) -> Iterator[None]:
        """Room for n answers to a request, under its key's caps. Raises TooMany or Unavailable."""
        key: Key | None = request.get(KEY)
        with ExitStack() as stack:
            if self.is_stopping or self.link.state is not State.READY:
                raise self.link.unavailable()
            if key is not None:
                stack.enter_context(key.asking())
            self._check_room(n)
            stack.enter_context(self.traffic.open(n))
            yield

    @contextmanager
    def answer(self, request: web.Request, asked: Generate) -> Iterator[Answer]:
        """An answer to a request, from its admission to its end. Raises TooMany or Unavailable."""
        key: Key | None = request.get(KEY)
        asked.max_seconds = None if key is None else key.caps.max_seconds
        with self.admitted(request, asked.n * max(1, len(asked.prompts))), self.link.generate(asked) as answer:
            with self.traffic.follow(answer, request[RECORD]) as followed:
                try:
                    yield answer
                finally:
                    if self.options.log_prompts:
                        asked_for = asked.prompts if asked.chat is None else asked.chat.messages
                        request[RECORD] |= {"asked": asked_for, "answered": followed.texts}
                    if key is not None:
                        key.use.add(0, followed.n_tokens)

    def _check_room(self, n: int) -> None:
        n_slots = max(1, self.link.n_slots)
        limit = n_slots + self.options.max_queued
        if self.traffic.n_open and self.traffic.n_open + n > limit:
            wait_s = self.traffic.mean_s * max(1.0, self.traffic.n_open / n_slots)
            raise TooMany(
                f"{self.traffic.n_open} answers are being made or wait; this server takes {limit} at once",
                code="queue_full", retry_after_s=min(60, max(1, math.ceil(wait_s))),
            )  # fmt: skip
