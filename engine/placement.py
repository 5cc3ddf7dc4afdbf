"""What lies where: bytes of weights, cache and results on each device, and the context that fits.

Pure arithmetic over plain integers, before anything is allocated.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import ConfigError
from .hparams import HParams
from .kv_cache import WINDOW, cache_bytes

# Part of the free memory that a context chosen by us may fill; the rest is for results and others.
_SHARE = 0.8
MIN_CTX = 64


@dataclass(frozen=True)
class Placement:
    """A model on one device. All sizes in bytes; `n_ctx` is the limit of one request."""

    device: str
    description: str
    n_ctx: int
    n_slots: int
    weights_bytes: int
    mapped_bytes: int
    cache_bytes: int
    compute_bytes: int

    def __str__(self) -> str:
        mib = 2**20
        mapped = f" + {self.mapped_bytes / mib:.0f} MiB mapped from the file" if self.mapped_bytes else ""
        return (
            f"{self.device} ({self.description}): weights {self.weights_bytes / mib:.0f} MiB{mapped}, "
            f"cache {self.cache_bytes / mib:.0f} MiB ({self.n_slots} x {self.n_ctx} tokens), "
            f"results {self.compute_bytes / mib:.0f} MiB"
        )


class Placements(tuple[Placement, ...]):
    """The placements of all ranks; as text, a line each."""

    def __str__(self) -> str:
        return "\n".join(str(placement) for placement in self)


def choose_ctx(
    hp: HParams, *, asked: int | None, n_slots: int, type_k: str, type_v: str, weights_bytes: int, free_bytes: int
) -> int:
    """The context of one request: what was asked, else the largest that fits up to the model's own.

    Raises ConfigError with needed and available bytes for a context that does not fit.
    """
    left = max(0, free_bytes - weights_bytes)
    if asked is not None:
        if asked < MIN_CTX:
            raise ConfigError(f"ctx = {asked}; at least {MIN_CTX} is needed")
        needed = cache_bytes(hp, n_slots, asked, type_k, type_v)
        if needed > left:
            fits = _largest(hp, n_slots, type_k, type_v, left)
            raise ConfigError(
                f"ctx = {asked} with {n_slots} slots needs {needed} bytes of cache; {left} are left beside the weights; "
                f"--ctx {fits} fits"
            )
        return asked
    if weights_bytes > free_bytes:
        raise ConfigError(f"the weights take {weights_bytes} bytes and {free_bytes} are free")
    return _largest(hp, n_slots, type_k, type_v, int(left * _SHARE))


def _largest(hp: HParams, n_slots: int, type_k: str, type_v: str, budget: int) -> int:
    per_window = cache_bytes(hp, n_slots, WINDOW, type_k, type_v)
    n = min(budget // per_window * WINDOW, hp.n_ctx_train)
    return int(max(n, MIN_CTX))
