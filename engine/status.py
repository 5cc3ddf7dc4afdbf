"""How an engine stands: plain values for a status page, metrics and health checks.

Taken without waiting for the engine, so numbers that belong together may be one step apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from .placement import Placement


@dataclass(frozen=True)
class SlotStatus:
    """One slot: `state` is free, prefill or decode; `n_held` tokens of it can be used again."""

    slot: int
    state: str
    n_held: int
    n_prompt: int = 0
    n_cached: int = 0
    n_past: int = 0
    n_generated: int = 0
    running_s: float = 0.0


@dataclass(frozen=True)
class PrefixStatus:
    """The prefix cache since the start. Lookups are prompts, hits those of which a part was there."""

    is_on: bool = True
    n_lookups: int = 0
    n_hits: int = 0
    n_prompt_tokens: int = 0
    n_reused_tokens: int = 0
    n_held_tokens: int = 0
    n_copies: int = 0
    n_evictions: int = 0
    n_files: int = 0
    file_bytes: int = 0
    n_files_loaded: int = 0


@dataclass(frozen=True)
class EngineStatus:
    """An engine at one moment.

    `state` is ready, rebuilding, failed or closed; `fault` is the reason of the last failure of all ranks, and
    `is_device_lost` says that nothing will run any more. `n_open` requests are running or queued, at most n_slots +
    max_queued where that is a number. Times are sums over steps: `native_s` computing (and exchanging between ranks),
    `reduce_s` rank 0's thread in sums over ranks, of those that a card does in its turn the launches.
    """

    state: str
    fault: str | None
    is_device_lost: bool
    n_ctx: int
    n_open: int
    n_running: int
    n_queued: int
    max_queued: int | None
    n_tokens_in_flight: int
    slots: tuple[SlotStatus, ...]
    prefix: PrefixStatus
    ranks: tuple[Placement, ...]
    transports: tuple[str, ...]
    n_steps: int
    n_prefill_steps: int
    n_decode_steps: int
    n_prompt_tokens: int
    n_generated_tokens: int
    n_plans_built: int
    n_rebuilds: int
    native_s: float
    plan_s: float
    n_reduces: int
    reduce_s: float
