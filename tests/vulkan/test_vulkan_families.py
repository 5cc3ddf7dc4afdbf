"""Families on one Vulkan rank against the CPU, and on two, also beside the CPU, against one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_modes import answered, nmse, writer_of

# A few, since lavapipe takes a minute for some; the log has thirteen.
ARCHITECTURES = ("stablelm", "cohere2", "qwen2moe", "deepseek2")
MODES: list[tuple[str, dict[str, Any]]] = [
    ("vulkan:0,vulkan:1", {"tp": 2}),
    ("vulkan:0,vulkan:1", {"layer_split": 2}),
    ("cpu,vulkan:1", {"tp": 2}),
]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_logits_and_greedy_answers_of_every_mode_equal_one_rank(arch: str, tmp_path: Path) -> None:
    path = writer_of(arch)(tmp_path / "model.gguf", arch)
    right, answers = answered(path, device="vulkan:0")
    plain, words = answered(path)
    assert nmse(right, plain) <= 1e-4 and answers == words
    for devices, mode in MODES:
        logits, ids = answered(path, device=devices, **mode)
        assert nmse(logits, right) <= 1e-4 and ids == answers, f"{devices} {mode}"
