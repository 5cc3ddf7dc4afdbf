"""The push kernel's source, run on processors with fewer threads and blocks: sums, replays, a rank that never comes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
KERNEL = TESTS.parent / "pyggml" / "native" / "cuda" / "push_kernel.cuh"
SMALLER = {"PUSH_N_THREADS": 12, "PUSH_MAX_BLOCKS": 3, "SPINS_A_LOOK": 16}
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.fixture(scope="module")
def push(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, from a copy of the kernel beside the stand-in for CUDA's words."""
    if COMPILER is None:
        pytest.skip("no C++ compiler: sudo apt install g++")
    folder = tmp_path_factory.mktemp("push")
    source = KERNEL.read_text()
    for name, value in SMALLER.items():
        source, n = re.subn(rf"(constexpr int {name} = )\d+", rf"\g<1>{value}", source)
        assert n == 1
    (folder / KERNEL.name).write_text(source)
    for path in (TESTS / "emulated").iterdir():
        shutil.copy(path, folder)
    command = [COMPILER, "-std=c++20", "-O1", "-Wno-unknown-pragmas", "push.cpp", "-o", "push", "-lpthread"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "push"


def said(program: Path, *arguments: int) -> list[str]:
    done = subprocess.run(
        [program, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=100
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("n_ranks", [2, 3, 8])
def test_all_ranks_get_the_sum_in_rank_order_however_sizes_and_alignments_vary(
    push: Path, n_ranks: int
) -> None:
    assert said(push, n_ranks, 40, -1) == ["right"]


@pytest.mark.parametrize(("n_ranks", "missing"), [(2, 1), (5, 0)])
def test_ranks_leave_at_the_deadline_and_name_the_rank_that_never_came(
    push: Path, n_ranks: int, missing: int
) -> None:
    expired, first_sum = 1, 1
    assert said(push, n_ranks, 3, missing) == [f"{expired} {missing} {first_sum}"] * (n_ranks - 1)
