"""An answer in Ollama's form: whole, or as lines of which the last has counts and times."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from .answer import Answer
from .errors import ApiError
from .message_parts import MessageParts, arguments_of
from .messages import Counts, Piece, TokenScore
from .ndjson import LineStream
from .ollama_chat import AnswerLine, AnswerMessage, AskedFields, Call, ChatLine, Function, GenerateLine
from .ollama_models import told_time
from .openai_chat import ToolCall
from .openai_logprobs import chat_logprobs
from .reply import finish_reason, json_reply

S_NS = 1e9
MakeLine = Callable[..., AnswerLine]


def chat_line(content: str, thinking: str | None, calls: Sequence[Call] | None, **fields: Any) -> AnswerLine:
    """A line of /api/chat."""
    message = AnswerMessage("assistant", content, thinking, list(calls) if calls else None)
    return ChatLine(message=message, **fields)


def generate_line(content: str, thinking: str | None, calls: Sequence[Call] | None, **fields: Any) -> AnswerLine:
    """A line of /api/generate, which knows no tools."""
    return GenerateLine(response=content, thinking=thinking, **fields)


class OllamaReply:
    """The answer to one request, whose lines `make` makes."""

    def __init__(self, model: str, asked: AskedFields, make: MakeLine) -> None:
        self._model, self._asked, self._make = model, asked, make
        self._start_s = time.perf_counter()
        self._parts = MessageParts()
        self._scores: list[TokenScore] = []
        self._ends: dict[str, Any] = {}

    async def whole(self, answer: Answer) -> web.Response:
        """All of it at once."""
        async for piece in answer:
            self._parts.push(piece)
            self._note(piece)
        thinking = self._parts.reasoning if self._shows_thinking else ""
        return json_reply(self._line(self._parts.content, thinking, self._calls(), is_last=True))

    async def stream(self, answer: Answer, lines: LineStream) -> web.StreamResponse:
        """Line after line; an error is the last one. Calls come whole, before the end."""
        try:
            async for piece in answer:
                self._note(piece)
                for delta in self._parts.push(piece):
                    thinking = (delta.reasoning_content or "") if self._shows_thinking else ""
                    if delta.content or thinking:
                        await lines.send(self._line(delta.content or "", thinking))
        except ApiError as error:
            return await lines.fail(error)
        if calls := self._calls():
            await lines.send(self._line("", "", calls))
        await lines.send(self._line("", "", is_last=True))
        return await lines.close()

    def loaded(self) -> web.Response:
        """What a request gets that asks for nothing but the model."""
        self._ends = {"done_reason": "load"}
        return json_reply(self._line("", "", is_last=True))

    @property
    def _shows_thinking(self) -> bool:
        return self._asked.think is not False

    def _calls(self) -> list[Call]:
        """The calls; one within which the answer was cut is left out."""
        calls = ((call, arguments_of(call)) for call in self._parts.tool_calls)
        return [_told(call, arguments) for call, arguments in calls if arguments is not None]

    def _line(
        self, content: str, thinking: str, calls: Sequence[Call] | None = None, is_last: bool = False
    ) -> AnswerLine:
        scores, self._scores = self._scores, []
        logprobs = chat_logprobs(scores, self._asked.top_logprobs or 0).content if self._asked.logprobs else None
        fields = self._ends if is_last else {}
        return self._make(
            content, thinking or None, calls, model=self._model, created_at=told_time(time.time()), done=is_last,
            logprobs=logprobs or None, **fields,
        )  # fmt: skip

    def _note(self, piece: Piece) -> None:
        """Take the tokens of a piece, and what the last one says of the whole answer."""
        self._scores += piece.scores
        if piece.finish_reason is not None and piece.counts is not None:
            reason = finish_reason(piece)
            self._ends = _ends(piece.counts, time.perf_counter() - self._start_s)
            self._ends["done_reason"] = "stop" if reason == "tool_calls" else reason


def _told(call: ToolCall, arguments: dict[str, Any]) -> Call:
    return Call(Function(call.function.name or "", arguments), call.id)


def _ends(counts: Counts, total_s: float) -> dict[str, Any]:
    """Counts and times of an answer by Ollama's names."""
    return {
        "total_duration": int(total_s * S_NS),
        "load_duration": 0,
        "prompt_eval_count": counts.n_prompt,
        "prompt_eval_duration": int(counts.prefill_s * S_NS),
        "eval_count": counts.n_generated,
        "eval_duration": int(counts.decode_s * S_NS),
        "prompt_cache_hit_tokens": counts.n_cached,
    }
