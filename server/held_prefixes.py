"""Which beginnings of prompts a replica is known to hold, as the front can tell: by the text, in blocks.

The front has no tokens, so a prompt is what it was sent as: the bytes of its text or ids, or of its conversation, which
grows at its end. Each block's hash covers all before it, so equal hashes are equal beginnings. As many sequences are
kept as the replica has slots, and a new one takes the place that the engine would give it (see prefix_cache.py there).
A mistake costs time, never a right answer: what is really cached is for the replica to find.
"""

from __future__ import annotations

import array
import bisect
from collections.abc import Sequence

import msgspec

from .messages import Generate

BLOCK_BYTES = 128
BYTES_PER_TOKEN = 4  # about, of texts; exactly, of ids
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN
MAX_BLOCKS = 8192
Blocks = Sequence[int]


def prompt_bytes(asked: Generate) -> bytes:
    """A request's prompt, or the first of several, so that a longer one of the same beginning begins with it."""
    try:
        if asked.chat is not None:
            chat = asked.chat
            return msgspec.json.encode([chat.tools, chat.variables, chat.messages])
        first = asked.prompts[0] if asked.prompts else ""
        return first.encode() if isinstance(first, str) else array.array("i", first).tobytes()
    except (OverflowError, RecursionError, TypeError, ValueError):
        return b""  # the engine will refuse it


def n_tokens(prompt: str | list[int]) -> int:
    """About how many tokens a prompt has."""
    return len(prompt) // BYTES_PER_TOKEN if isinstance(prompt, str) else len(prompt)


def blocks_of(data: bytes) -> Blocks:
    """A hash of each whole block and all before it."""
    found, before = array.array("q"), 0
    for start in range(0, min(len(data) - BLOCK_BYTES + 1, MAX_BLOCKS * BLOCK_BYTES), BLOCK_BYTES):
        before = hash((before, data[start : start + BLOCK_BYTES]))
        found.append(before)
    return found


def n_common(a: Blocks, b: Blocks) -> int:
    """How many blocks two sequences begin with together."""
    places = range(min(len(a), len(b)))
    return bisect.bisect_left(places, True, key=lambda i: a[i] != b[i])


class HeldPrefixes:
    """The sequences that a replica's slots hold."""

    def __init__(self) -> None:
        self._held: list[Blocks] = []  # the one used last at the end

    def n_common(self, blocks: Blocks) -> int:
        """The most blocks of a prompt that a slot begins with."""
        return max((n_common(held, blocks) for held in self._held), default=0)

    def hold(self, blocks: Blocks, n_slots: int) -> None:
        """A slot takes this sequence: one that loses little or at most half of its own, else the oldest one."""
        common = [n_common(held, blocks) for held in self._held]
        lost = [len(held) - n for held, n in zip(self._held, common)]
        fitting = [i for i, n in enumerate(common) if lost[i] <= max(1, n)]
        if fitting:
            del self._held[max(fitting, key=lambda i: (common[i], -lost[i]))]
        self._held.append(blocks)
        del self._held[:-n_slots]

    def clear(self) -> None:
        """The replica has begun anew."""
        self._held = []
