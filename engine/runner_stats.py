"""What a runner counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RunnerStats:
    """Counts since the start. `native_s` is time inside the C calls of steps, or beside
    them while devices were busy.
    """

    n_steps: int = 0
    n_plans_built: int = 0
    native_s: float = 0.0
    plan_s: float = 0.0
