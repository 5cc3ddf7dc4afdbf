"""Reads an engine's status off its parts, from any thread and without waiting for a step."""

from __future__ import annotations

import time

from .engine import Engine
from .errors import DeviceLost
from .loading import LoadedModel
from .request import Request
from .runner import Runner
from .scheduler import Scheduler
from .status import EngineStatus, PrefixStatus, SlotStatus


def observe(engine: Engine, runner: Runner, loaded: LoadedModel, *, is_closed: bool) -> EngineStatus:
    """The status of an engine that runs a loaded model."""
    scheduler, counts, stats = engine.scheduler, engine.counts, runner.stats
    running = dict(scheduler.running)
    n_open = engine.n_open
    fault = engine.fault
    is_unsteady = is_closed or fault is not None or engine.is_rebuilding
    return EngineStatus(
        state="failed" if fault else "closed" if is_closed else "rebuilding" if engine.is_rebuilding else "ready",
        fault=engine.last_fault if fault is None else str(fault),
        is_device_lost=isinstance(fault, DeviceLost),
        n_ctx=loaded.n_ctx,
        n_open=n_open,
        n_running=len(running),
        n_queued=max(0, n_open - len(running)),
        max_queued=engine.max_queued,
        n_tokens_in_flight=sum(request.n_past for request in running.values()),
        slots=tuple(_slot(scheduler, s, running.get(s)) for s in range(scheduler.n_slots)),
        prefix=_prefix(scheduler),
        ranks=() if is_unsteady else loaded.placements,
        transports=() if is_unsteady else loaded.transports,
        n_steps=stats.n_steps,
        n_prefill_steps=counts.n_prefill_steps,
        n_decode_steps=counts.n_decode_steps,
        n_prompt_tokens=counts.n_prompt_tokens,
        n_generated_tokens=counts.n_generated_tokens,
        n_plans_built=stats.n_plans_built,
        n_rebuilds=engine.n_rebuilds,
        native_s=stats.native_s,
        plan_s=stats.plan_s,
        n_reduces=0 if is_unsteady else loaded.n_reduces,
        reduce_s=0.0 if is_unsteady else loaded.reduce_s,
    )


def _prefix(scheduler: Scheduler) -> PrefixStatus:
    cache = scheduler.cache
    n_files, file_bytes = cache.files
    n_held = sum(scheduler.n_held(slot) for slot in range(scheduler.n_slots))
    return PrefixStatus(
        is_on=cache.is_on, n_held_tokens=n_held, n_files=n_files, file_bytes=file_bytes, **vars(cache.counts)
    )


def _slot(scheduler: Scheduler, slot: int, request: Request | None) -> SlotStatus:
    n_held = scheduler.n_held(slot)
    if request is None:
        return SlotStatus(slot, "free", n_held)
    return SlotStatus(
        slot=slot,
        state="prefill" if request.is_prefilling else "decode",
        n_held=n_held,
        n_prompt=len(request.prompt_ids),
        n_cached=request.n_cached,
        n_past=request.n_past,
        n_generated=len(request.output_ids),
        running_s=time.perf_counter() - request.started_s,
    )
