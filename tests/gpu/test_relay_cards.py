"""Decode steps that feed each other on cards: the same tokens as with the host between them, and faults that end well.

Needs a CUDA device; two for groups: `pytest tests/gpu/test_relay_cards.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sent import Sent

import pyggml as gg
from pyggml.engine import LLM, GenerationError
from pyggml.engine.plan import Plan

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")

MODES: dict[str, dict[str, Any]] = {
    "one": {"device": "cuda:0"},
    "push": {"tp": 2, "transport": "push"},
    "nccl": {"tp": 2, "transport": "nccl"},
    "push-shm": {"tp": 2, "transport": "push-shm"},
}
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
PROMPTS = [[3, 4, 5], [6, 7], [8, 9, 10, 11], [12]]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    if request.param != "one" and len(CARDS) < 2:
        pytest.skip("fewer than two CUDA devices")
    if request.param == "push-shm":
        monkeypatch.setenv("PYGGML_P2P", "0")
    return MODES[request.param]


@pytest.fixture
def n_fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were fed by the one before, as a list of one number."""
    count = [0]
    begin = gg.Relay.begin

    def counted(self: gg.Relay, bank: int, *, is_fed: bool = False) -> None:
        count[0] += is_fed
        begin(self, bank, is_fed=is_fed)

    monkeypatch.setattr(gg.Relay, "begin", counted)
    return count


def opened(path: Path, mode: dict[str, Any]) -> LLM:
    return LLM(path, ctx=1024, threads=4, parallel=4, **mode)


def asked(llm: LLM) -> list[list[int]]:
    """Answers alone over the ends of windows, beside each other, of different lengths, and with a token banned."""
    found = [list(llm.generate([PROMPTS[0]], max_tokens=600, **GREEDY)[0].ids)]
    found += [list(answer.ids) for answer in llm.generate(PROMPTS, max_tokens=120, **GREEDY)]
    sent = [Sent(llm, prompt, max_tokens=30 + 30 * i, ignore_eos=True) for i, prompt in enumerate(PROMPTS)]
    # How many are beside each other depends on time, and kernels on that.
    found += [one.wait().ids()[:1] for one in sent]
    late = max(found[0], key=found[0].index)  # the token that comes last for its first time
    found.append(list(llm.generate([PROMPTS[0]], max_tokens=80, logit_bias={late: float("-inf")}, **GREEDY)[0].ids))
    assert late not in found[-1]
    return found


@pytest.mark.parametrize(
    ("arch", "options"), [("llama", {"quant": "Q8_0", "n_ff": 768}), ("qwen3moe", {}), ("gemma3", {})]
)
def test_tokens_are_those_of_single_steps(
    arch: str,
    options: dict[str, Any],
    mode: dict[str, Any],
    tiny: Callable[..., Path],
    n_fed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tiny(arch, **options)
    with opened(path, mode) as llm:
        found = asked(llm)
        replays = llm.probe.replays
    n_begun, n_fed[0] = n_fed[0], 0
    assert n_begun > 600, replays
    monkeypatch.setattr(Plan, "relay", None)
    with opened(path, mode) as llm:
        assert asked(llm) == found
    assert n_fed[0] == 0


def test_without_cuda_graphs_nothing_is_recorded_and_tokens_are_the_same(
    mode: dict[str, Any], tiny: Callable[..., Path], n_fed: list[int]
) -> None:
    path = tiny("llama", quant="Q8_0", n_ff=768)
    found = []
    for is_on in (True, False):
        n_fed[0] = 0
        with LLM(path, ctx=1024, threads=4, parallel=4, cuda_graphs=is_on, **mode) as llm:
            found.append(list(llm.generate([PROMPTS[0]], max_tokens=300, **GREEDY)[0].ids))
            assert ("recorded" in llm.probe.replays()) is is_on
        assert (n_fed[0] > 0) is is_on
    assert found[0] == found[1]


def test_a_fault_between_steps_ends_the_answer_and_the_next_is_right(
    mode: dict[str, Any], tiny: Callable[..., Path], n_fed: list[int]
) -> None:
    if "tp" not in mode:
        pytest.skip("a group's fault")
    path = tiny("llama", quant="Q8_0", n_ff=768)
    with opened(path, mode) as llm:
        right = list(llm.generate([PROMPTS[0]], max_tokens=100, **GREEDY)[0].ids)
        n_before = n_fed[0]

        def fail() -> None:
            while n_fed[0] < n_before + 30:
                pass
            group = llm._loaded.ranks.group
            assert group is not None
            group.fail("planted")

        thread = threading.Thread(target=fail)
        thread.start()
        with pytest.raises(GenerationError, match="planted"):
            llm.generate([PROMPTS[0]], max_tokens=900, **GREEDY)
        thread.join(60)
        assert list(llm.generate([PROMPTS[0]], max_tokens=100, **GREEDY)[0].ids) == right
        assert llm.status().n_rebuilds == 1


def test_a_step_that_nobody_asks_for_is_left_behind(
    mode: dict[str, Any], tiny: Callable[..., Path], n_fed: list[int]
) -> None:
    path = tiny("llama", quant="Q8_0", n_ff=768)
    with opened(path, mode) as llm:
        right = list(llm.generate([PROMPTS[1]], max_tokens=100, **GREEDY)[0].ids)
        for _ in range(3):
            stream = llm.generate([PROMPTS[0]], max_tokens=900, stream=True, **GREEDY)
            for count, _ in enumerate(stream):
                if count == 40:
                    break
            stream.close()
            scores = llm.score(PROMPTS[2] * 20)
            assert list(llm.generate([PROMPTS[1]], max_tokens=100, **GREEDY)[0].ids) == right
            assert (scores == llm.score(PROMPTS[2] * 20)).all()
    assert n_fed[0] > 300
