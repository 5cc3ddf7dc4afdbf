"""The push kernels' source, run on processors with fewer threads and blocks: sums, replays, a rank that never comes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import pyggml as gg

TESTS = Path(__file__).resolve().parent
KERNELS = [TESTS.parent / "pyggml" / "native" / "cuda" / f"push_{name}.cuh" for name in ("rank", "parts", "letters")]
SMALLER = {
    "PUSH_N_THREADS": 12, "LETTER_N_THREADS": 8, "PUSH_MAX_BLOCKS": 3, "PUSH_MAX_LETTERS": 256, "PUSH_PART_BYTES": 64,
    "SPINS_A_LOOK": 16,
}  # fmt: skip
COMPILER = shutil.which("c++") or shutil.which("g++")


@pytest.fixture(scope="module")
def push(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, from copies of the kernels beside the stand-in for CUDA's words."""
    if COMPILER is None:
        pytest.skip("no C++ compiler: sudo apt install g++")
    folder = tmp_path_factory.mktemp("push")
    sources = {path.name: path.read_text() for path in KERNELS}
    for name, value in SMALLER.items():
        pattern, smaller = rf"(constexpr int {name} = )\d+", rf"\g<1>{value}"
        assert sum(len(re.findall(pattern, source)) for source in sources.values()) == 1
        sources = {path: re.sub(pattern, smaller, source) for path, source in sources.items()}
    for path, source in sources.items():
        (folder / path).write_text(source)
    for path in (TESTS / "emulated").iterdir():
        shutil.copy(path, folder)
    command = [COMPILER, "-std=c++20", "-O1", "-Wno-unknown-pragmas", "push.cpp", "-o", "push", "-lpthread"]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / "push"


def said(program: Path, *arguments: object) -> list[str]:
    done = subprocess.run(
        [program, *map(str, arguments)], check=False, capture_output=True, text=True, timeout=100
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize("kind", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("n_ranks", [2, 3, 8])
def test_all_ranks_get_the_sum_in_rank_order_however_sizes_and_alignments_vary(
    push: Path, n_ranks: int, kind: str
) -> None:
    right = "right, some as letters" if kind == "f32" else "right"
    assert said(push, kind, n_ranks, 40 if kind == "f32" else 20, -1) == [right]


@pytest.mark.parametrize("kind", ["f32", "bf16"])  # as letters, in parts
@pytest.mark.parametrize(("n_ranks", "missing"), [(2, 1), (5, 0)])
def test_ranks_leave_at_the_deadline_and_name_the_rank_that_never_came(
    push: Path, n_ranks: int, missing: int, kind: str
) -> None:
    expired, first_sum = 1, 1
    assert said(push, kind, n_ranks, 3, missing) == [f"{expired} {missing} {first_sum}"] * (n_ranks - 1)


def bf16(values: np.ndarray) -> np.ndarray:
    return gg.dequantize(gg.quantize(values, "bf16"), "bf16", values.shape)


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_numbers_are_rounded_to_nearest(push: Path, kind: str) -> None:
    bits = np.random.default_rng(4).integers(0, 2**32, 5000, np.uint32)
    halfway = np.arange(0x3F800000, 0x3F900000, 0x800, np.uint32)
    x = np.concatenate([bits, halfway, [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000]]).astype(np.uint32)
    values = x.view(np.float32)
    done = subprocess.run([push, kind, "narrow"], input=values.tobytes(), check=True, capture_output=True, timeout=60)
    ours = np.frombuffer(done.stdout, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        right = values.astype(np.float16).astype(np.float32) if kind == "f16" else bf16(values)
    assert np.array_equal(ours, right, equal_nan=True)
