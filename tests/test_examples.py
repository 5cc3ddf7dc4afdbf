"""The examples of graphs run and show what they claim."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# Each line that is printed, with the error that it may show.
PRINTED = {
    "mlp.py": [("f32", 1e-5), ("bf16", 2e-2), ("q8_0", 2e-2), ("q4_k", 0.15)],
    "attention.py": [("f16", 2e-3), ("bf16", 1e-2), ("q8_0", 2e-2)],
}
MAX_LINES = {"mlp.py": 50, "attention.py": 70}


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_and_its_errors_are_small(name: str) -> None:
    child = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "cpu"], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")
    lines = child.stdout.splitlines()
    assert len(lines) == len(PRINTED[name])
    for line, (kind, limit) in zip(lines, PRINTED[name]):
        error = re.search(r"relative error (\S+)$", line)
        assert re.search(rf"\b{kind}\b", line) and error is not None
        assert 0 < float(error[1]) <= limit


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= MAX_LINES[name]


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_takes_the_name_of_a_device(name: str) -> None:
    child = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "abacus:0"], capture_output=True, text=True, check=False
    )
    assert child.returncode != 0
    assert "no device 'abacus:0'; this machine has cpu" in child.stderr
