"""A request of several prompts over several engines: which prompt goes where, and one answer of the parts.

A part that fails ends the whole with its error, once. Event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec

from .answer import Answer
from .errors import ApiError


def dealt(sizes: Sequence[int], loads: Sequence[int]) -> list[list[int]]:
    """The numbers of the prompts that each engine gets: in order, each to the one with least to do by then."""
    to_do, parts = list(loads), [list[int]() for _ in loads]
    for prompt, size in enumerate(sizes):
        at = min(range(len(to_do)), key=lambda i: (to_do[i], len(parts[i])))
        to_do[at] += size
        parts[at].append(prompt)
    return parts


class SpreadAnswer(Answer):
    """An answer whose prompts are answered in parts: by each part's answer, the numbers of its prompts.

    Index = prompt * n + choice, in the whole as in a part.
    """

    def __init__(self, parts: Mapping[Answer, Sequence[int]], n: int) -> None:
        n_prompts = sum(map(len, parts.values()))
        super().__init__(0, n_prompts * n, lambda answer: self._close_parts())
        self._n = n
        self._parts = parts
        self._counts = [0] * n_prompts
        self._n_waiting = len(parts)
        self._tasks = [asyncio.ensure_future(self._follow(part, prompts)) for part, prompts in parts.items()]

    async def _follow(self, part: Answer, prompts: Sequence[int]) -> None:
        try:
            for prompt, count in zip(prompts, await part.accepted()):
                self._counts[prompt] = count
            self._n_waiting -= 1
            if not self._n_waiting:
                self.accept(self._counts)
            async for piece in part:
                prompt, choice = divmod(piece.index, self._n)
                self.add(msgspec.structs.replace(piece, index=prompts[prompt] * self._n + choice))
        except ApiError as error:
            if not self.is_over:
                self.fail(error)

    def _close_parts(self) -> None:
        for task in self._tasks:
            task.cancel()
        for part in self._parts:
            part.close()
