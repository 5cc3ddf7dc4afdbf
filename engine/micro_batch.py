"""Pieces of one prompt that are in flight together: on the stages of a layer split, or on ranks that take turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

import pyggml as gg

from .forward import PlanShape
from .plan import Place, Plan
from .runner_stats import RunnerStats

Embed = Callable[[str, np.ndarray], np.ndarray]


class MicroBatch(NamedTuple):
    """A piece, the plan of its shape, and which of its tokens get logits."""

    plan: Plan
    shape: PlanShape
    piece: Place
    out_rows: Sequence[int]

    def fill(self, embed: Embed | None) -> None:
        """Have the plan ready for a step with this piece; none of its own may be in flight."""
        self.plan.move(self.shape.slot0, self.shape.n_kv)
        self.plan.fill([self.piece], self.out_rows, embed)


def split(place: Place, out_rows: Sequence[int], size: int) -> list[tuple[Place, list[int]]]:
    """A prompt in pieces of `size` tokens, and which tokens of each get logits: those asked for of the last."""
    starts = range(0, len(place.ids), size)
    pieces = [Place(place.slot, place.start + at, place.ids[at : at + size]) for at in starts]
    return [(piece, [row - at for row in out_rows if at == starts[-1]]) for at, piece in zip(starts, pieces)]


def is_last(out_rows: Sequence[int], place: Place) -> bool:
    """Whether no logits are asked for, or those of the last token."""
    return list(out_rows) in ([], [len(place.ids) - 1])


def run_in_turns(batches: Sequence[MicroBatch], turns: gg.Turns | None, meanwhile: Callable[[], None]) -> None:
    """Run one that is filled, or two, each of which computes while the other's sums travel."""
    first, *second = (batch.plan for batch in batches)
    if second:
        assert turns is not None and len(second) == 1, "turns are taken by two"
        first.post_in_turns(second[0], turns)
    else:
        first.post()
    try:
        meanwhile()
    finally:
        first.finish()


def run_in_stages(
    batches: Sequence[MicroBatch],
    group: gg.Group,
    n_lanes: int,
    embed: Embed | None,
    stats: RunnerStats,
    meanwhile: Callable[[], None],
) -> None:
    """Run them with every stage busy; `meanwhile` is called when one was begun.

    Stages take them in order from their queues. A plan's host arrays may change when its step
    before is done on the last stage, hence one lane more than stages.
    """
    try:
        for k, batch in enumerate(batches):
            group.wait(n_lanes - 1)
            stats.n_steps += k >= n_lanes - 1  # whoever watches sees that it goes on
            batch.fill(embed)
            batch.plan.post()
            meanwhile()
        batches[-1].plan.finish()
    except BaseException:
        if not group.closed:
            group.wait()
        raise
    stats.n_steps += min(len(batches), n_lanes - 1)
