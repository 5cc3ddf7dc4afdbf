"""Plans by shape, of which those not used for longest leave where there are too many. Engine thread only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence

import pyggml as gg

from .forward import PlanShape
from .plan import Plan

MAX_PLANS = 64
MAX_HOST_BYTES = 1 << 30  # of the plans' host arrays, masks above all
MIN_FREE_BYTES = 128 << 20  # of a card, on which what is recorded of a plan takes some megabytes


class PlanCache:
    """At most MAX_PLANS plans, with MAX_HOST_BYTES of host arrays; no more of them where a card is nearly full.

    `kept` shapes stay whatever comes. `devices` are the plans' own.
    """

    def __init__(self, devices: Sequence[gg.Device]) -> None:
        self._cards = [device for device in devices if device.kind != "cpu"]
        self._plans: OrderedDict[PlanShape, Plan] = OrderedDict()
        self.kept: Collection[PlanShape] = ()

    def items(self) -> Iterator[tuple[PlanShape, Plan]]:
        """Shapes and plans, those used last at the end."""
        yield from self._plans.items()

    def find(self, shape: PlanShape) -> Plan | None:
        """The plan of a shape, if it is here and its memory has not moved; where it has, all such plans leave."""
        plan = self._plans.get(shape)
        if plan is None:
            return None
        if not plan.is_stale:
            self._plans.move_to_end(shape)
            return plan
        for stale in [key for key, plan in self._plans.items() if plan.is_stale]:
            self._plans.pop(stale).close()
        return None

    def add(self, shape: PlanShape, make: Callable[[PlanShape], Plan]) -> Plan:
        """Make the plan of a shape, and let others leave for it."""
        plan = self._plans[shape] = make(shape)
        n_most = MAX_PLANS
        if any(card.memory_free < MIN_FREE_BYTES for card in self._cards):
            n_most = max(1, len(self._plans) - 1)  # one for another: drivers give back late what is freed
        while len(self._plans) > n_most or self._host_bytes > MAX_HOST_BYTES:
            oldest = next(iter(self._plans))
            if oldest in self.kept or oldest == shape:
                break
            self._plans.pop(oldest).close()
        return plan

    @property
    def _host_bytes(self) -> int:
        return sum(plan.host_bytes for plan in self._plans.values())

    def clear(self) -> None:
        """Close all plans."""
        while self._plans:
            self._plans.popitem()[1].close()
