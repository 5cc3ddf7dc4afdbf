"""Where a step of the model spends its time: the kernels of a fresh plan, or its nodes one by one.

The step is made up: random tokens that see what lies in the cache and write into the row that nothing reads, so that
requests in flight are not disturbed. Engine thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np

import pyggml as gg

from .forward import HOST_FEEDS, Forward, PlanShape
from .hparams import HParams
from .plan import Plan, fill_mask
from .rank import Ranks

_N_WARM = 3  # the second step of a plan may be recorded, the third is the first to be replayed
_SECONDS, _N_STEPS = 0.5, (3, 50)  # time to spend on steps, and how many at least and at most


@dataclass(frozen=True)
class StepProfile:
    """One step's work, the most expensive kind first, over all ranks.

    `way` is "kernels" (the GPU's own times) or "nodes" (run one by one, without fusion: more than a step takes), and
    `why` says what stood against kernels. `step_s` is the median of whole steps, timed before.
    """

    n_tokens: int
    n_seq: int
    n_kv: int
    step_s: float
    way: str
    why: str
    works: tuple[gg.Work, ...]

    @property
    def total_s(self) -> float:
        """Seconds of all work."""
        return sum(work.seconds for work in self.works)


def step_profile(
    ranks: Ranks,
    hp: HParams,
    forward: Callable[[Forward], gg.Tensor | None],
    shape: PlanShape,
    embed: Callable[[str, np.ndarray], np.ndarray] | None,
) -> StepProfile:
    """Profile a plan made for it. Raises PlanError."""
    ranks.expose(shape.slot0, shape.n_seq, shape.n_kv)

    def made() -> Plan:
        plan = Plan(ranks, hp, shape, forward)
        _fill(plan, hp, embed)
        for _ in range(_N_WARM):
            plan.step()
        return plan

    plan = made()
    try:
        times = _step_times(plan)
    finally:
        plan.close()
    way, why = "kernels", ""
    modules = {rank.backend.device.module for rank in ranks.ranks}
    try:
        if modules != {"cuda"}:
            raise gg.DeviceError("some ranks are not CUDA cards" if "cuda" in modules else "")
        works = _kernels(made, len(times))
    except gg.DeviceError as error:
        way, why, works = "nodes", str(error), _nodes(made)
    return StepProfile(shape.n_tokens, shape.n_seq, shape.n_kv, median(times), way, why, tuple(works))


def _fill(plan: Plan, hp: HParams, embed: Callable[[str, np.ndarray], np.ndarray] | None) -> None:
    """Random tokens at the end of the window, which see all of it."""
    s, feeds = plan.shape, plan.feeds
    plan.fill([], [0] * s.n_out if "out_rows" in feeds else (), embed)
    tokens = np.random.default_rng(0).integers(0, hp.n_vocab, s.n_rows).astype(np.int32)
    if "tokens" in feeds:
        feeds["tokens"][:] = tokens
    for table, feed in HOST_FEEDS.items():
        if feed in feeds and embed is not None:
            feeds[feed][:] = embed(table, tokens)
    first = max(0, s.n_kv - s.n_tokens)
    feeds["positions"][:] = np.tile(np.arange(first, first + s.n_tokens), s.n_seq)
    for name, window in (("mask", 0), ("mask_swa", hp.n_swa)):
        for r in range(s.n_seq if name in feeds else 0):
            fill_mask(feeds[name][r, 0], first, s.n_tokens, window, is_chunked=hp.is_chunked)


def _step_times(plan: Plan) -> list[float]:
    times: list[float] = []
    at_least, at_most = _N_STEPS
    while len(times) < at_least or (len(times) < at_most and sum(times) < _SECONDS):
        start = time.perf_counter()
        plan.step()
        times.append(time.perf_counter() - start)
    return times


def _kernels(made: Callable[[], Plan], n_steps: int) -> list[gg.Work]:
    with gg.KernelTrace() as trace:
        plan = made()
        try:
            trace.restart()
            for _ in range(n_steps):
                plan.step()
            found = trace.end()
        finally:
            plan.close()
    return [gg.Work(w.name, round(w.count / n_steps), w.seconds / n_steps) for w in found]


def _nodes(made: Callable[[], Plan]) -> list[gg.Work]:
    plan = made()
    try:
        of_ranks = [graph.node_times() for graph in plan.graphs if graph.n_nodes]
    finally:
        plan.close()
    names = dict.fromkeys(work.name for works in of_ranks for work in works)
    found = []
    for name in names:
        same = [work for works in of_ranks for work in works if work.name == name]
        found.append(gg.Work(name, sum(w.count for w in same), sum(w.seconds for w in same)))
    return sorted(found, key=lambda w: -w.seconds)
