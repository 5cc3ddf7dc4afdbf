"""The physical bound of decode: bytes that a step must read, over the speed at which memory gives them."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import pyggml as gg

from .demand import CacheFacts
from .model import Model
from .placement import Placement

_BYTES = 2**28  # more than caches hold
_N_COPIES, _N_RUNS = 4, 5


def step_bytes(model: Model, n_seq: int, n_kv: int) -> float:
    """Bytes that one decode step of n_seq sequences must read: weights once, and each one's cache of n_kv tokens.

    Of a mixture's experts those that n_seq tokens choose when every choice is as likely; of the embedding a row.
    """
    hp, tensors = model.hparams, model.file.tensors
    chosen = 1 - (1 - hp.n_expert_used / hp.n_expert) ** n_seq if hp.n_expert else 1.0
    read = 0.0
    for name, tensor in tensors.items():
        if name == "token_embd.weight" and "output.weight" in tensors:
            continue
        read += tensor.n_bytes * (chosen if "_exps." in name else 1.0)
    return read + n_seq * n_kv * CacheFacts(n_seq).token_bytes(hp, (0, hp.n_layer), None)


@functools.cache
def bandwidth(device: str, threads: int | None = None) -> float:
    """Bytes a second: of a GPU read and written by copies in its memory, of a CPU read by so many threads."""
    with gg.Backend(device) as backend:
        if backend.device.kind == "cpu":
            return _read_bandwidth(threads or gg.default_threads())
        with gg.Graph(backend) as graph:
            source, target = (graph.state(name, (_BYTES // 4,)) for name in ("source", "target"))
            for _ in range(_N_COPIES):
                graph.do(gg.copy(source, target))
            graph.step()
            return 2 * _BYTES * _N_COPIES / min(_seconds(graph.step) for _ in range(_N_RUNS))


def _read_bandwidth(n_threads: int) -> float:
    parts = [np.ones(_BYTES // n_threads // 8, np.int64) for _ in range(n_threads)]
    with ThreadPoolExecutor(n_threads) as pool:
        seconds = min(_seconds(lambda: list(pool.map(np.max, parts))) for _ in range(_N_RUNS))
    return sum(part.nbytes for part in parts) / seconds


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def decode_ceiling(
    model: Model, plan: Sequence[Placement], n_seq: int, n_kv: int, threads: int | None = None
) -> float:
    """Tokens a second of n_seq sequences that no program could exceed with the weights where they lie.

    Devices that share layers read at the same time, those of a layer split one after the other.
    """
    held: dict[str, float] = defaultdict(float)
    for placement in plan:
        held[placement.device] += placement.weights_bytes + placement.mapped_bytes
    total = step_bytes(model, n_seq, n_kv)
    times = [total * n / sum(held.values()) / bandwidth(name, threads) for name, n in held.items()]
    is_split_by_layer = len({placement.layers for placement in plan}) > 1
    return n_seq / (sum(times) if is_split_by_layer else max(times))
