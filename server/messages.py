"""What the front and the engine's process tell each other, and how it lies in bytes.

A frame is a length, the number of the request if it is one, and a MessagePack array of messages. The front numbers
requests; after `Accepted` come `Piece`s, the last of each index with a finish reason, or one `Failed` ends it. Knows no
HTTP.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import msgspec

HEADER = struct.Struct("!IQ")


class Message(msgspec.Struct, array_like=True, tag=True):
    """Base of all that is sent."""


class Load(Message):
    """The first message: open this model with these options of LLM, on these processors where there are some."""

    model: str
    options: dict[str, Any]
    cpus: list[int] = []


class Chat(msgspec.Struct, array_like=True):
    """A conversation to render with the model's template, and what its answer is to be, in OpenAI's words."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    variables: dict[str, Any] = {}


class Generate(Message):
    """Answer a conversation, or continue each of `prompts`, `n` times each; index = prompt * n + choice.

    `sampling` are fields of SamplingParams. Without `tells_each` an answer comes as one piece. `echoes` wants the
    prompts back, `prompt_logprobs` so many of the likeliest tokens at each place of them.
    """

    id: int
    sampling: dict[str, Any]
    chat: Chat | None = None
    prompts: list[str | list[int]] = []
    n: int = 1
    tells_each: bool = True
    prompt_logprobs: int | None = None
    echoes: bool = False
    max_seconds: float | None = None
    cache_prompt: bool = True


class Cancel(Message):
    """The client has left."""

    id: int


class Tokenize(Message):
    """Token ids of a text; the answer has ids and the bytes of each."""

    id: int
    text: str
    add_special: bool
    parse_special: bool


class Detokenize(Message):
    """The text of token ids."""

    id: int
    ids: list[int]


class Render(Message):
    """The prompt of a conversation, as text and as ids."""

    id: int
    chat: Chat


class Embed(Message):
    """A vector of each prompt."""

    id: int
    prompts: list[str | list[int]]


class Status(Message):
    """What the engine is doing."""

    id: int


ToEngine = Load | Generate | Cancel | Tokenize | Detokenize | Render | Embed | Status


class Progress(Message):
    """Bytes of weights loaded so far."""

    done_bytes: int
    total_bytes: int


class Ready(Message):
    """The model is loaded. `facts` say what it is and where it lies."""

    facts: dict[str, Any]


class Broken(Message):
    """The engine cannot go on and its process ends; `is_mistake` where the options are at fault.

    `is_final`: a device is lost, so that starting again is of no use.
    """

    reason: str
    is_mistake: bool = False
    is_final: bool = False


class Condition(Message):
    """The engine's state has changed: `is_rebuilding` while it builds its ranks again after a fault."""

    is_rebuilding: bool


class TokenScore(msgspec.Struct, array_like=True):
    """A token, its bytes, its log-probability (None for the first of a prompt) and the likeliest at its place."""

    id: int
    data: bytes
    logprob: float | None
    top: list[tuple[int, bytes, float]] = []


class Accepted(Message):
    """A request waits for its turn. """

    id: int
    n_prompt: list[int]


class Counts(msgspec.Struct, array_like=True):
    """Counts and times of a finished answer."""

    n_prompt: int
    n_cached: int
    n_generated: int
    ttft_s: float
    prefill_s: float
    decode_s: float


class Echo(msgspec.Struct, array_like=True):
    """A prompt's text, and its tokens where they were asked for."""

    text: str
    scores: list[TokenScore] = []


class CallPiece(msgspec.Struct, array_like=True):
    """A piece of a call: the first of each has `id` and `name`, those after it only more of `arguments`."""

    index: int
    arguments: str
    id: str | None = None
    name: str | None = None


class Piece(Message):
    """What one step, or all of them, added to an answer; the first piece of an echoed prompt has it.

    `n_reasoning` of the tokens are reasoning; `stop_text` is the stop string that ended the answer.
    """

    id: int
    index: int
    text: str
    ids: list[int]
    scores: list[TokenScore] = []
    finish_reason: str | None = None
    counts: Counts | None = None
    prompt: Echo | None = None
    reasoning: str = ""
    calls: list[CallPiece] = []
    n_reasoning: int = 0
    stop_text: str | None = None


class Done(Message):
    """The result of anything but Generate."""

    id: int
    value: Any


class Failed(Message):
    """A request ended with an error. `kind` is request, too_long, template, queue_full, generation or engine."""

    id: int
    kind: str
    message: str


FromEngine = Progress | Ready | Broken | Condition | Accepted | Piece | Done | Failed

_encoder = msgspec.msgpack.Encoder()
to_engine = msgspec.msgpack.Decoder(list[ToEngine])
from_engine = msgspec.msgpack.Decoder(list[FromEngine])


def frame(messages: Sequence[Message], id: int = 0) -> bytes:
    """Messages behind their header. Raises OverflowError for a number of more than 64 bits."""
    body = _encoder.encode(messages)
    return HEADER.pack(len(body), id) + body


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes] | None:
    """The next frame's number and body; None at the end, also where it comes in the middle of a frame."""
    try:
        size, id = HEADER.unpack(await reader.readexactly(HEADER.size))
        return id, await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
