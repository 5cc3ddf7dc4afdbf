"""Memory bandwidth of the host and of devices, and what a decode step must read: the physical ceiling of decode."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import pyggml as gg
from pyggml.engine import Model

_COPY_BYTES = 2**30  # more than any cache holds
_N_COPIES = 4


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


def copy_bandwidth(device: str, repeats: int = 10) -> float:
    """Bytes a second read and written by copies inside a GPU's memory, the best of some runs."""
    with gg.Backend(device) as backend:
        with gg.Graph(backend) as graph:
            source, target = (graph.state(name, (_COPY_BYTES // 4,)) for name in ("source", "target"))
            for _ in range(_N_COPIES):
                graph.do(gg.copy(source, target))
            graph.step()
            best = float("inf")
            for _ in range(repeats):
                start = time.perf_counter()
                graph.step()
                best = min(best, time.perf_counter() - start)
    return 2 * _COPY_BYTES * _N_COPIES / best


def step_bytes(path: str | Path, n_seq: int, n_kv: int) -> float:
    """Bytes that one decode step of n_seq sequences must read: weights once, and each sequence's cache of n_kv tokens.

    Of a mixture's experts those that n_seq tokens choose when every choice is as likely; of the embedding a row.
    """
    model = Model(str(path))
    hp = model.hparams
    names = {tensor.name for tensor in model.file.tensors.values()}
    share = 1.0
    if hp.n_expert:
        share = 1 - (1 - hp.n_expert_used / hp.n_expert) ** n_seq
    total = 0.0
    for tensor in model.file.tensors.values():
        if tensor.name == "token_embd.weight" and "output.weight" in names:
            continue
        total += tensor.n_bytes * (share if re.search(r"_exps\.", tensor.name) else 1.0)
    model.close()
    return total + n_seq * n_kv * hp.n_layer * hp.n_head_kv * (hp.head_dim + hp.head_dim_v) * 2
