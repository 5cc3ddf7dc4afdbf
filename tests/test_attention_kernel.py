"""The source of attention of few tokens, run on a processor whose threads are fibers: right for every shape.

What earlier kernels leave is there only once all threads have waited for it; copies arrive when they are waited for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from emulation import compile_emulated, run_emulated

SOURCES = ("attention*.cuh", "attention*.h", "attention.cu")
# Sums in float32 and scores as large as 100, against float64; with one half for each weight of V it is 1e-8.
LIMIT, LIMIT_OF_LOUD = 1e-12, 3e-11

# HEAD_DIM, N_HEAD, N_HEAD_KV, N_TOKENS, N_SEQ, N_KV, KIND, PROCESSORS
CASES = [
    *((d, 4, 2, n, 1, n_kv, "plain", 8)
      for d in (64, 80, 96, 112, 128, 256) for n, n_kv in ((1, 256), (1, 336), (3, 336))),
    *((64, 8, 2, n, 1, 256, "plain", 6) for n in (1, 2, 4, 7, 8)),
    *((64, 4, 1, 2, 2, 512, kind, 8)
      for kind in ("bare", "one", "window", "sinks", "softcap", "softcap-sinks-window", "blind")),
    *((64, 4, 4, 2, 2, n_kv, kind, 5) for n_kv in (1, 15, 17, 250) for kind in ("plain", "sinks")),
    *((64, 20, 2, 1, 1, 256, "plain", n) for n in (1, 3, 40)),
    (128, 16, 1, 8, 1, 256, "plain", 20),
    (128, 8, 2, 1, 1, 256, "loud", 4),
    (128, 2, 1, 1, 1, 1024, "window-sinks", 20),
    (64, 2, 1, 8, 9, 64, "plain", 4),
    (64, 1, 1, 1, 1, 4096, "sinks", 64),
]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_emulated("attention", SOURCES, tmp_path_factory.mktemp("attention"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_attention_is_right_once_and_again(program: Path, case: tuple[object, ...]) -> None:
    first, again, _ = run_emulated(program, case)
    assert max(first, again) <= (LIMIT_OF_LOUD if "loud" in case else LIMIT)


@pytest.mark.parametrize(("n_kv", "most"), [(1024, 0.35), (2048, 0.2)])
def test_rows_that_a_window_hides_are_not_read(program: Path, n_kv: int, most: float) -> None:
    """But for the first tile of each warp, which is asked for before the mask is there."""
    _, _, part = run_emulated(program, (64, 2, 1, 1, 1, n_kv, "window", 3))
    assert part < most
    assert run_emulated(program, (64, 2, 1, 1, 1, n_kv, "plain", 3))[2] == 1
