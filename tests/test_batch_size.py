"""How many prompt tokens a step takes: the choice from measured steps, and what a processor takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyggml import AllocationError
from pyggml.engine import batch_size
from pyggml.engine.batch_size import best_batch, prompt_seconds


@pytest.mark.parametrize(
    ("step_ms", "n_stages", "best"),
    [
        ({512: 45.0, 1024: 85.0, 2048: 165.0}, 1, 2048),
        ({512: 45.0, 1024: 89.9, 2048: 179.5}, 1, 512),  # no gain that is worth the memory
        ({512: 45.0, 1024: 85.0, 2048: 172.0}, 1, 1024),
        ({512: 45.0, 1024: 85.0, 2048: 165.0}, 2, 512),  # stages would wait for each other
        ({512: 45.0, 1024: 60.0}, 2, 1024),
        ({512: 45.0}, 4, 512),
    ],
)
def test_a_larger_batch_must_be_worth_it(step_ms: dict[int, float], n_stages: int, best: int) -> None:
    assert best_batch({n: ms / 1e3 for n, ms in step_ms.items()}, n_stages) == best


def test_stages_need_a_step_more_each_to_fill() -> None:
    assert prompt_seconds(0.1, 512, 1) == pytest.approx(16 * 0.1)
    assert prompt_seconds(0.1, 512, 2) == pytest.approx(17 * 0.05)
    assert prompt_seconds(0.1, 4096, 2) == pytest.approx(3 * 0.05)


class FakeRunner:
    """A runner whose steps take a second for 1000 tokens, in turns one for `in_turns`."""

    in_turns = 2000.0
    halves_pay_from = 10**6
    opened: list[FakeRunner] = []
    freed: list[int] = []

    def __init__(self, ranks: Any, hp: Any, family: Any, n: int, *, takes_turns: bool = False) -> None:
        self.n, self.takes_turns, self.is_closed, self.halved_from = n, takes_turns, False, n + 1
        FakeRunner.opened.append(self)

    def time_prefill(self, n_tokens: int) -> float:
        if n_tokens <= self.n:
            is_faster = self.halved_from <= n_tokens and n_tokens >= self.halves_pay_from
            return n_tokens / (1500.0 if is_faster else 1000.0)
        return n_tokens / (self.in_turns if self.takes_turns else 1000.0)

    def close(self) -> None:
        self.is_closed = True


def ranks(*, may_take_turns: bool = True, n_rows: int = 4096, memory_free: int = 100 << 30) -> Any:
    device = SimpleNamespace(kind="gpu", memory_free=memory_free)
    rank = SimpleNamespace(
        backend=SimpleNamespace(device=device),
        allocator=SimpleNamespace(n_bytes=1 << 30),
        free_beside=lambda: FakeRunner.freed.append(1),
    )
    return SimpleNamespace(
        ranks=[rank, rank],
        cache=SimpleNamespace(n_rows=n_rows),
        is_split_by_layer=False,
        may_take_turns=may_take_turns,
    )


@pytest.mark.parametrize(
    ("speed", "options", "batch", "n", "takes_turns"),
    [
        (2000.0, {}, None, 512, True),
        (1019.0, {}, None, 512, False),  # no gain that is worth a second memory for results
        (900.0, {}, None, 512, False),
        (2000.0, {}, 256, 256, False),  # who gives the size has planned the memory
        (2000.0, {"may_take_turns": False}, None, 512, False),
        (2000.0, {"n_rows": 1000}, None, 512, False),  # two never come together
        (2000.0, {"memory_free": 1 << 30}, None, 512, False),
    ],
)
def test_ranks_take_turns_where_that_is_faster_and_fits(
    speed: float,
    options: dict[str, Any],
    batch: int | None,
    n: int,
    takes_turns: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_size, "Runner", FakeRunner)
    monkeypatch.setattr(FakeRunner, "in_turns", speed)
    FakeRunner.opened.clear()
    FakeRunner.freed.clear()
    runner: Any = batch_size.open_runner(ranks(**options), None, None, batch)  # type: ignore[arg-type]
    assert (runner.n, runner.takes_turns) == (n, takes_turns)
    assert [other for other in FakeRunner.opened if not other.is_closed] == [runner]
    has_tried = any(other.takes_turns for other in FakeRunner.opened)
    assert len(FakeRunner.freed) == (2 if has_tried and not takes_turns else 0)


@pytest.mark.parametrize(("pay_from", "halved_from"), [(10**6, 513), (512, 512), (200, 256), (1, 128)])
def test_prompts_are_halved_down_to_where_it_pays(
    pay_from: int, halved_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_size, "Runner", FakeRunner)
    monkeypatch.setattr(FakeRunner, "halves_pay_from", pay_from)
    runner: Any = batch_size.open_runner(ranks(), None, None, None)  # type: ignore[arg-type]
    assert (runner.takes_turns, runner.halved_from) == (True, halved_from)


def test_without_memory_for_turns_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FakeRunner):
        def time_prefill(self, n_tokens: int) -> float:
            if self.takes_turns:
                raise AllocationError("planted")
            return super().time_prefill(n_tokens)

    monkeypatch.setattr(batch_size, "Runner", Failing)
    FakeRunner.opened.clear()
    FakeRunner.freed.clear()
    runner: Any = batch_size.open_runner(ranks(), None, None, None)  # type: ignore[arg-type]
    assert (runner.n, runner.takes_turns, len(FakeRunner.freed)) == (512, False, 2)
    assert [other for other in FakeRunner.opened if not other.is_closed] == [runner]
