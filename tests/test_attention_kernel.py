"""The source of attention of one token a sequence, run on a processor whose threads are fibers, clusters included.

Against float64: what is left are sums in float32 and sines of large angles.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation import compile_emulated, run_emulated

SOURCES = ("attention*", "heads.h", "head_turns.cuh", "warp_sums.cuh")
LIMIT = 1e-8
pytestmark = pytest.mark.timeout(600)  # the first one compiles the program

# Size of a head, heads of Q, of K, sequences, rows of the window, clusters for it, kind.
CASES = [
    *((d, 4, 1, n, 256, 1, kind) for d in (64, 128) for n in (1, 3) for kind in ("plain", "neox-sinks")),
    *((128, *n, 2, 256, 1, "normed-neox") for n in ((1, 1), (9, 3), (7, 1), (8, 1), (10, 1), (28, 2), (32, 2))),
    (128, 4, 2, 2, 256, 1, "capped-outside"),
    (128, 4, 2, 2, 512, 2, "normed-outside"),
    *((128, 4, 2, 3, n_kv, 1, "one-mask") for n_kv in (256, 512)),
    (64, 3, 1, 1, 256, 1, "part"),
    (128, 4, 1, 2, 256, 1, "part-neox"),
    (128, 16, 2, 1, 1024, 1, "window"),
    *((64, 8, 1, 2, 1280, clusters, "sinks-capped") for clusters in (1, 2, 3, 4, 5)),
    (128, 4, 2, 1, 1280, 3, "sinks-neox-window"),
    (128, 2, 2, 1, 768, 2, "normed"),
    (128, 8, 1, 1, 4096, 16, "plain"),
]
# What a kernel without it would read: what earlier kernels have yet to write, or memory of blocks that are gone.
WAITS = [
    "wait_for_earlier();",
    "wait_for_cluster();\n        add_up",
    "wait_for_cluster();  // nobody leaves",
]


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("attention", SOURCES, tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_attention_is_right_and_stores_its_row(attention: Path, case: tuple[object, ...]) -> None:
    error, error_of_rows, is_ready_again = run_emulated(attention, case)
    assert error <= LIMIT and error_of_rows <= 1e-10 and is_ready_again == 1


@pytest.mark.parametrize("wait", WAITS)
def test_a_kernel_without_one_of_its_waits_is_wrong(wait: str, tmp_path: Path) -> None:
    program = compile_emulated("attention", SOURCES, tmp_path, without=("attention.cuh", wait))
    error, _, _ = run_emulated(program, (64, 4, 1, 2, 256, 1, "plain"))
    assert not error <= 0.1  # or NaN
