"""Memory bandwidth of the host, the physical ceiling of decode on a CPU."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def read_bandwidth(n_threads: int, n_bytes: int = 1 << 29, repeats: int = 5) -> float:
    """Bytes a second that n_threads read together, the best of some passes over a large array."""
    part = np.ones(n_bytes // n_threads // 8, np.int64)
    parts = [part.copy() for _ in range(n_threads)]
    best = float("inf")
    with ThreadPoolExecutor(n_threads) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - start)
    return sum(p.nbytes for p in parts) / best
