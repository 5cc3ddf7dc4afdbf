"""Hands prompts to the engine through its streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from pyggml.engine import LLM, Delta, GenerationError, Stream

from .messages import Generate


def submit(
    llm: LLM, prompts: Sequence[list[int]], asked: Generate, take: Callable[[int, Delta], None]
) -> Callable[[], None]:
    """Start the answers; returns what cancels them."""
    stream = llm.generate([ids for ids in prompts for _ in range(asked.n)], stream=True, **asked.sampling)
    task = asyncio.ensure_future(_follow(stream, take))

    def cancel() -> None:
        task.cancel()

    return cancel


async def _follow(stream: Stream, take: Callable[[int, Delta], None]) -> None:
    try:
        async for delta in stream:
            take(delta.index, delta)
    except Exception as error:
        take(0, Delta("", error=GenerationError(str(error))))
