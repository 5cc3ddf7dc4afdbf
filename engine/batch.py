"""The work of one step: which tokens of which requests run together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .request import Request


class Phase(Enum):
    """Prefill runs many tokens of one request or of a few, decode one token of many."""

    PREFILL = "prefill"
    DECODE = "decode"


class Row(NamedTuple):
    """A stretch of one request's tokens. `wants_logits` is for the last of them, `is_read` for the results of all."""

    request: Request
    start: int
    ids: tuple[int, ...]
    wants_logits: bool
    is_read: bool = False

    @property
    def slot(self) -> int:
        """The request's place in the cache."""
        assert self.request.slot is not None, "a scheduled request has a slot"
        return self.request.slot


@dataclass(frozen=True)
class Limits:
    """The most prompt tokens of a step; of one whose speed is not known yet; of one for several prompts; of one whose
    results are all wanted, unless another number is asked for, and of that: a `micro_batch` is evaluated as one."""

    max_chunk: int
    max_first: int
    max_shared: int
    max_read: int
    micro_batch: int


@dataclass(frozen=True)
class Batch:
    """Rows in the order of their slots, in neighbouring slots in prefill.

    Where the step after this one is known to be a decode step, `goes_on` says for each row whether it will be in that,
    with its likeliest token; what ends an answer by surprise aside.
    """

    phase: Phase
    rows: tuple[Row, ...]
    goes_on: tuple[bool, ...] = ()
