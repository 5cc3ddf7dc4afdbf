"""A relay for plans of CPUs: the host does what cards would, a step takes the likeliest token of the one in front."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine.plan import Place, Plan
from pyggml.relay import Bank

INTS = gg._ffi.lib.PGC_CHOOSE_INTS  # type: ignore[attr-defined]


class FakeRelay:
    """As pyggml.Relay over one plan, whose graphs it runs when a step is begun; it notes what it was asked for."""

    begun: list[bool]  # of each step whether it was fed

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        n = plan.shape.n_rows
        self.banks = [
            Bank({name: np.zeros(n, np.int64) for name in ("tokens", "positions", "kv_rows")}, [], None, None)
            for _ in range(2)
        ]
        for bank in self.banks:
            bank.results = [np.zeros((n, INTS), np.int32)]
        self._in_flight: list[int] = []
        self._likeliest = np.zeros(n, np.int64)
        self.is_ready = True
        self.n_fed = self.n_dropped = 0
        self.fails_at: int | None = None
        self.fault: Exception | None = None  # of the next steps that are dropped

    def begin(self, bank: int, *, is_fed: bool = False) -> None:
        assert bank not in self._in_flight and len(self._in_flight) == is_fed
        self._in_flight.append(bank)
        self.n_fed += is_fed
        if self.n_fed == self.fails_at:
            self.fails_at = None
            raise gg.ComputeError("planted")
        feeds = self.banks[bank].feeds
        tokens = self._likeliest if is_fed else feeds["tokens"]
        cache = self._plan._cache
        places = []
        for r, (row, position) in enumerate(zip(feeds["kv_rows"].tolist(), feeds["positions"].tolist())):
            if row != cache.trash_row:
                assert row == (self._plan.slot0 + r) * cache.n_rows + position
                places.append(Place(self._plan.slot0 + r, position, (int(tokens[r]),)))
        self._plan.fill(places, (), None)
        self._plan.step()
        logits = self._plan.logits()
        assert isinstance(logits, np.ndarray)
        best = gg.top_candidates(logits, [gg.CHOSEN] * len(logits), scale=[1.0] * len(logits))
        self._likeliest = best.ids[:, 0].astype(np.int64)
        found = self.banks[bank].results[0]
        k = best.ids.shape[1]
        found[:, :k] = best.ids
        found.view(np.float32)[:, gg.CHOSEN : gg.CHOSEN + k] = best.values
        found[:, 2 * gg.CHOSEN] = best.found
        found.view(np.float32)[:, 2 * gg.CHOSEN + 1] = best.logsumexp

    def finish(self) -> int:
        return self._in_flight.pop(0)

    def drop(self) -> Exception | None:
        self.n_dropped += len(self._in_flight)
        self._in_flight.clear()
        fault, self.fault = self.fault, None
        if fault is not None:
            group = self._plan._group
            assert group is not None
            group.close()
        return fault

    def close(self) -> None:
        self.drop()


def give_relays(monkeypatch: pytest.MonkeyPatch) -> list[FakeRelay]:
    """Let decode plans made from now on have such a relay; the list grows with each."""
    made: list[FakeRelay] = []

    def relay(self: Plan) -> Any:
        if self.shape.n_tokens > 1:
            return None
        if "fake" not in self.__dict__:
            self.__dict__["fake"] = FakeRelay(self)
            made.append(self.__dict__["fake"])
        return self.__dict__["fake"]

    monkeypatch.setattr(Plan, "relay", property(relay))
    monkeypatch.setattr(Plan, "first_ids", [0])
    return made
