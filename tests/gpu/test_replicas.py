"""Replicas on CUDA cards of their own: the same answers, no memory on another's card, back after a kill.

Needs two CUDA devices, groups four: `pytest tests/gpu/test_replicas.py`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import HANG_S, ServerProcess

import pyggml as gg

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(len(CARDS) < 2, reason="fewer than two CUDA devices")

SMALL = ("--ctx", 512, "--parallel", 2)
# A CUDA context alone takes more; what other processes take meanwhile should not.
SLACK_BYTES = 96 * 2**20


def texts(server: ServerProcess, n: int) -> list[str]:
    """Answers to n different prompts."""
    asked = [{"prompt": [5 + i, 9, 11 + i], "max_tokens": 12, "temperature": 0, "ignore_eos": True} for i in range(n)]
    return [server.post("/v1/completions", body).json["choices"][0]["text"] for body in asked]


def rows(server: ServerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.get("/status").json["replicas"]
    return found


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


def test_replicas_on_two_cards_answer_as_one_card_does(tiny: Callable[..., Path]) -> None:
    path = tiny("llama", quant="F16")
    with ServerProcess(path, *SMALL, "--device", CARDS[0]) as server:
        right = texts(server, 6)
    with ServerProcess(path, *SMALL, "--dp", 2) as server:
        assert [row["devices"] for row in rows(server)] == [[CARDS[0]], [CARDS[1]]]
        assert texts(server, 6) == right
        assert [row["n_routed"] for row in rows(server)] == [3, 3]


def test_a_worker_opens_only_its_own_card_and_a_killed_one_comes_back(tiny: Callable[..., Path]) -> None:
    card = gg.device(CARDS[0])
    before = card.memory_free_unopened
    with ServerProcess(tiny("llama"), *SMALL, "--dp", 2, "--device", ",".join(CARDS[:2])) as server:
        right = texts(server, 2)
        until(lambda: card.memory_free_unopened < before - SLACK_BYTES)
        killed, other = rows(server)
        os.kill(killed["pid"], signal.SIGKILL)
        until(lambda: card.memory_free_unopened > before - SLACK_BYTES)  # nothing of the other one lies there
        until(lambda: server.get("/health").json["status"] == "ok")
        again, same = rows(server)
        assert (again["n_restarts"], same["pid"], same["n_restarts"]) == (1, other["pid"], 0)
        assert texts(server, 2) == right


@pytest.mark.parametrize("mode", ["--tp", "--layer-split"])
def test_replicas_are_groups_of_cards(mode: str, tiny: Callable[..., Path]) -> None:
    if len(CARDS) < 4:
        pytest.skip("fewer than four CUDA devices")
    with ServerProcess(tiny("llama"), *SMALL, "--dp", 2, mode, 2) as server:
        assert [row["devices"] for row in rows(server)] == [CARDS[:2], CARDS[2:4]]
        asked = {"prompt": [5, 9, 11], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        one, two = (server.post("/v1/completions", asked).json["choices"][0]["text"] for _ in range(2))
        assert one == two
        assert [row["n_routed"] for row in rows(server)] == [1, 1]


def test_two_replicas_may_share_a_card(tiny: Callable[..., Path]) -> None:
    with ServerProcess(tiny("llama"), *SMALL, "--dp", 2, "--device", f"{CARDS[0]},{CARDS[0]}") as server:
        assert texts(server, 3) == texts(server, 3)  # each prompt once on either
        assert [row["n_routed"] for row in rows(server)] == [3, 3]


def test_more_replicas_than_cards_are_refused_with_what_works(tiny: Callable[..., Path]) -> None:
    with ServerProcess(tiny("llama"), "--dp", len(CARDS) + 1, waits=False) as server:
        assert server.process.wait(HANG_S) == 2
        server.wait_for(rf"--dp {len(CARDS) + 1} need {len(CARDS) + 1} GPUs .*; --dp {len(CARDS)} works")
