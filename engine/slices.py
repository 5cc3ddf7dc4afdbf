"""A rank's part of one weight, in words, in shape and in bytes.

Quantised weights are sliced as they lie in the file; cuts must fall on their blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np

from .balance import Span


class ElementType(Protocol):
    """What the planner needs of an element type: `block_size` elements take `type_size` bytes."""

    @property
    def block_size(self) -> int: ...
    @property
    def type_size(self) -> int: ...


class Axis(Enum):
    """What a slice is cut along."""

    WHOLE = "whole"
    OUT = "out"
    IN = "in"
    EXPERTS = "experts"


@dataclass(frozen=True)
class Slice:
    """Spans of dimension `dim` (numpy's order), laid one after the other.

    A span may come more than once: a key/value head that serves more query heads than others.
    """

    axis: Axis
    dim: int = 0
    spans: tuple[Span, ...] = ()

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The slice's shape, given the weight's."""
        if self.axis is Axis.WHOLE:
            return tuple(whole)
        return (*whole[: self.dim], sum(stop - start for start, stop in self.spans), *whole[self.dim + 1 :])

    def n_bytes(self, whole: Sequence[int], kind: ElementType) -> int:
        """Bytes of the slice, given the weight's shape and type."""
        return math.prod(self.shape(whole)) // kind.block_size * kind.type_size

    def of(self, data: np.ndarray, whole: Sequence[int], kind: ElementType) -> np.ndarray:
        """The slice's bytes out of the weight's; without a copy where they lie together.

        Shapes: data uint8 [n_bytes of the weight] -> uint8 [n_bytes of the slice].
        """
        if self.axis is Axis.WHOLE:
            return data
        table = data.reshape(*whole[:-1], whole[-1] // kind.block_size * kind.type_size)
        is_last = self.dim == len(whole) - 1
        parts = []
        for start, stop in self.spans:
            if is_last:
                start, stop = (n // kind.block_size * kind.type_size for n in (start, stop))
            parts.append(table[(slice(None),) * self.dim + (slice(start, stop),)])
        return (parts[0] if len(parts) == 1 else np.concatenate(parts, axis=self.dim)).reshape(-1)


WHOLE = Slice(Axis.WHOLE)


def slice_of_spans(axis: Axis, dim: int, spans: Iterable[Span]) -> Slice | None:
    """A slice with adjacent spans joined; None when there is nothing in it."""
    joined: list[Span] = []
    for start, stop in spans:
        if start == stop:
            continue
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return Slice(axis, dim, tuple(joined)) if joined else None
