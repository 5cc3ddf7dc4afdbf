"""Random operands of every operation on a CUDA device: the CPU's results, or refused; never the end of the process.

Needs a CUDA device: `pytest tests/gpu/test_op_fuzz.py`. PYGGML_TEST_FUZZ_SEED tries other operands.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import op_fuzz
import pytest

import pyggml as gg

CARDS = [d.name for d in gg.devices() if d.module == "cuda"]
pytestmark = pytest.mark.skipif(not CARDS, reason="no CUDA device")
FUZZ = Path(op_fuzz.__file__)
N_CASES = 150


@pytest.mark.parametrize("name", op_fuzz.PROPOSALS)
def test_random_operands_give_the_cpus_results_or_are_refused(name: str) -> None:
    """In a process of its own: a failed assertion of ggml ends it, and the last line tells the operands."""
    seed = os.environ.get("PYGGML_TEST_FUZZ_SEED", "7")
    done = subprocess.run(
        [sys.executable, FUZZ, seed, str(N_CASES), name],
        check=False, capture_output=True, text=True, timeout=110,
        env={**os.environ, "OP_FUZZ_DEVICE": CARDS[0], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    told = [
        line
        for line in done.stderr.splitlines()
        if line.startswith(CARDS[0]) or "GGML_ASSERT" in line or "CUDA error" in line
    ]
    last = "\n".join(told[-4:])
    assert done.returncode == 0, f"ended with {done.returncode}: {last}"
    differing = [
        case
        for case, verdict in zip(done.stderr.splitlines(), done.stderr.splitlines()[1:])
        if "  differs" in verdict
    ]
    assert "ran=" in done.stdout, f"nothing was computed: {done.stdout}"
    assert not differing, f"{done.stdout}\n" + "\n".join(differing[:5])
