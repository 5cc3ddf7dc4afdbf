"""Without --tp or --layer-split one card is used and the others are left alone. Needs two CUDA cards and NVML.

`pytest tests/gpu/test_other_cards.py`, with nothing else at work on the cards.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.card_memory import card_facts, free_bytes

SCRIPT = """
import sys
from pyggml.engine import LLM
with LLM(sys.argv[1], ctx=256, parallel=1) as llm:
    llm.generate("a", max_tokens=2, ignore_eos=True)
    print(llm.plan[0].device, flush=True)
    sys.stdin.readline()
"""


def test_one_device_leaves_the_other_cards_memory_as_it_was(tiny: Callable[..., Path]) -> None:
    cards = [facts[0] for facts in map(card_facts, range(2)) if facts]
    if len(cards) < 2 or None in map(free_bytes, cards):
        pytest.skip("two CUDA cards and NVML are needed")
    before = [free_bytes(card) or 0 for card in cards]
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tiny("llama"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    used = child.stdout.readline().strip()
    taken = [n - (free_bytes(card) or 0) for n, card in zip(before, cards)]
    child.communicate("\n", timeout=60)
    at = int(used.split(":")[1])
    assert taken[at] > 50 * 2**20, taken
    assert taken[1 - at] < 10 * 2**20, taken
