"""How many prompt tokens a step should take on these devices, by trying.

A larger step keeps a card busier and needs more memory; stages of a layer split work on several at once and
then like smaller ones. Engine thread, before the first request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyggml import AllocationError

from .errors import PlanError
from .hparams import HParams
from .load_options import DEFAULT_BATCH
from .models.family import Family
from .rank import Ranks
from .runner import Runner

LOG = logging.getLogger("pyggml.engine")

TRIED = (512, 1024, 2048)
# The prompt for which stages are to be busy.
LONG_PROMPT = 8192
# A larger step must be worth its memory and the longer wait of others.
MIN_GAIN = 0.02
SPARE_BYTES = 1 << 30


def prompt_seconds(step_s: float, n_batch: int, n_stages: int) -> float:
    """Seconds a long prompt takes in steps of n_batch that take step_s through all stages."""
    n_steps = -(-LONG_PROMPT // n_batch)
    return step_s / n_stages * (n_steps + n_stages - 1)


def best_batch(step_seconds: Mapping[int, float], n_stages: int) -> int:
    """The batch whose prompts are fastest; a larger one only where it gains enough over the smaller."""
    best = min(step_seconds)
    for n in sorted(step_seconds):
        gain = prompt_seconds(step_seconds[best], best, n_stages) / prompt_seconds(step_seconds[n], n, n_stages)
        if gain > 1 + MIN_GAIN:
            best = n
    return best


def open_runner(ranks: Ranks, hp: HParams, family: Family, batch: int | None) -> Runner:
    """A runner with this many tokens a step, or with None as many as are fastest; off cards DEFAULT_BATCH.

    Where the size is left open and ranks may take turns, they do if that is faster. Raises PlanError, AllocationError.
    """
    tried = [n for n in TRIED if n <= ranks.cache.n_rows]
    on_cards = all(rank.backend.device.kind in ("gpu", "igpu") for rank in ranks.ranks)
    if batch is not None or not on_cards or not tried or (len(tried) == 1 and not ranks.may_take_turns):
        return Runner(ranks, hp, family, batch or DEFAULT_BATCH)
    n_stages = len(ranks.ranks) if ranks.is_split_by_layer else 1
    seconds: dict[int, float] = {}
    for n in tried:
        if seconds and not _has_room(ranks, n / max(seconds)):
            break
        try:
            runner = Runner(ranks, hp, family, n)
        except (AllocationError, PlanError):
            if not seconds:
                raise
            break
        seconds[n] = runner.time_prefill(n)
        runner.close()
    best = best_batch(seconds, n_stages)
    speeds = {str(n): n / s for n, s in seconds.items()}
    runner = _faster_in_turns(ranks, hp, family, best, speeds) or Runner(ranks, hp, family, best)
    words = ", ".join(f"{name}: {speed:.0f}" for name, speed in speeds.items())
    LOG.info("prompts are taken %d tokens at a time; tokens a second by size: %s", best, words)
    if runner.takes_turns:
        LOG.info("ranks take turns on prompts of %d tokens and more", runner.halved_from)
    return runner


def _faster_in_turns(
    ranks: Ranks, hp: HParams, family: Family, n: int, speeds: dict[str, float]
) -> Runner | None:
    """A runner whose ranks compute while the sums of another micro-batch travel, if that is faster; notes its speed."""
    if not ranks.may_take_turns or 2 * n > ranks.cache.n_rows or not _has_room(ranks, 1.0):
        return None
    runner = None
    try:
        runner = Runner(ranks, hp, family, n, takes_turns=True)
        speed = speeds[f"{n} in turns"] = 2 * n / runner.time_prefill(2 * n)
        if speed > (1 + MIN_GAIN) * speeds[str(n)]:
            _halve(runner, n)
            return runner
    except (AllocationError, PlanError) as error:
        LOG.warning("ranks do not take turns on prompts: %s", error)
    if runner is not None:
        runner.close()
    for rank in ranks.ranks:
        rank.free_beside()
    return None


def _halve(runner: Runner, n: int) -> None:
    """Have prompts of a step or less taken as two halves, down to the size where that is still faster."""
    for size in (n, n // 2, n // 4):
        whole = runner.time_prefill(size)
        before, runner.halved_from = runner.halved_from, size
        if runner.time_prefill(size) * (1 + MIN_GAIN) > whole:
            runner.halved_from = before
            break


def _has_room(ranks: Ranks, growth: float) -> bool:
    """Whether every device could hold results of steps so many times as large, and something to spare."""
    return all(
        rank.backend.device.memory_free > growth * rank.allocator.n_bytes + SPARE_BYTES for rank in ranks.ranks
    )
