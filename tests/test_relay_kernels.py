"""The source of the kernels that bring the likeliest token of all ranks into the next step, run on a processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulation import CUDA, compile_emulated, run_emulated

K, INTS = 64, 132  # PGC_CHOOSE_K and PGC_CHOOSE_INTS
N_VOCAB = 524288  # as many as the card chooses from
KINDS = ("few", "negative", "normal")
pytestmark = pytest.mark.timeout(600)  # the first one compiles the program


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("relay")
    words = (CUDA.parent / "cuda_api.h").read_text().splitlines()
    sizes = [line for line in words if line.startswith("#define PGC_CHOOSE_")]
    assert sizes == [f"#define PGC_CHOOSE_K {K}", "#define PGC_CHOOSE_INTS (2 * PGC_CHOOSE_K + 4)"]
    (folder / "cuda_api.h").write_text("\n".join(sizes) + "\n")  # the whole of it needs ggml's headers
    return compile_emulated("relay", ("relay_pairs.cuh",), folder)


def random_values(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Best first; `few` are often the same on several ranks."""
    if kind == "few":
        values = random.integers(-2, 3, shape).astype(np.float32)
    else:
        values = random.normal(0, 10, shape).astype(np.float32)
    return -np.sort(np.abs(values) if kind == "negative" else values)


def random_found(random: np.random.Generator, kind: str, n_ranks: int, n_rows: int) -> np.ndarray:
    """Of each three rows one on some ranks, one on none, one on all; where nothing was found lies something too."""
    found = random.integers(-(2**31), 2**31, (n_ranks, n_rows, INTS), np.int32)
    found[..., :K] = random.integers(0, N_VOCAB // n_ranks, (n_ranks, n_rows, K))
    found[..., K : 2 * K] = random_values(random, kind, (n_ranks, n_rows, K)).view(np.int32)
    is_found = random.random((n_ranks, n_rows)) < np.resize([0.5, 0, 1], n_rows)
    counts = random.integers(1, K, (n_ranks, n_rows), endpoint=True)
    found[..., 2 * K] = np.where(is_found, counts, random.integers(-3, 0, counts.shape, endpoint=True))
    return found


def first_ids_of(n_ranks: int) -> np.ndarray:
    """The last rank's ids end with the vocabulary."""
    return N_VOCAB - N_VOCAB // n_ranks * np.arange(n_ranks, 0, -1)


def best_token(first_ids: np.ndarray, found: np.ndarray) -> int:
    """Of one row's results on all ranks."""
    offers = [
        (float(row[K : K + 1].view(np.float32)[0]), -rank, int(first_ids[rank] + row[0]))
        for rank, row in enumerate(found)
        if row[2 * K] > 0
    ]
    return max(offers)[2] if offers else 0


def fed(relay: Path, file: Path, first_ids: np.ndarray, found: np.ndarray) -> list[float]:
    """The tokens; nothing behind them was written."""
    n_ranks, n_rows = found.shape[:2]
    np.concatenate([first_ids, found.ravel()]).astype(np.int32).tofile(file)
    tokens = run_emulated(relay, (file, n_ranks, n_rows))
    assert set(tokens[n_rows:]) == {-1}
    return tokens[:n_rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_rows", [1, 5, 64, 200])
@pytest.mark.parametrize("n_ranks", [1, 2, 3, 16])
def test_the_best_token_of_all_ranks_is_fed(
    relay: Path, tmp_path: Path, n_ranks: int, n_rows: int, kind: str
) -> None:
    random = np.random.default_rng([n_ranks, n_rows, KINDS.index(kind)])
    first_ids, found = first_ids_of(n_ranks), random_found(random, kind, n_ranks, n_rows)
    right = [best_token(first_ids, found[:, row]) for row in range(n_rows)]
    assert fed(relay, tmp_path / "found", first_ids, found) == right


@pytest.mark.parametrize("n_ranks", [1, 2, 16])
def test_the_last_tokens_come_through_exactly(relay: Path, tmp_path: Path, n_ranks: int) -> None:
    right = list(range(N_VOCAB - 200, N_VOCAB))
    first_ids, found = first_ids_of(n_ranks), np.zeros((n_ranks, 200, INTS), np.int32)
    found[-1, :, 0], found[-1, :, 2 * K] = right - first_ids[-1], 1
    assert fed(relay, tmp_path / "found", first_ids, found) == right
