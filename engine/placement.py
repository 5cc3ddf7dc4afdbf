"""What lies where: bytes of weights, cache and results on each device, as lines, a table and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .balance import Span

MIN_CTX = 64


@dataclass(frozen=True)
class Placement:
    """What lies on one device. All sizes in bytes; `n_ctx` is the limit of one request.

    `replicated_bytes` is the part of the weights that other ranks hold too; `layers` and `heads` are the
    runs of layers and query heads of this rank, `n_head_kv` the key/value heads in its cache.
    """

    device: str
    description: str
    n_ctx: int
    n_slots: int
    weights_bytes: int
    mapped_bytes: int
    cache_bytes: int
    compute_bytes: int
    replicated_bytes: int = 0
    layers: Span | None = None
    heads: Span | None = None
    n_head_kv: int | None = None

    @property
    def n_bytes(self) -> int:
        """Everything that is allocated on the device."""
        return self.weights_bytes + self.cache_bytes + self.compute_bytes

    def __str__(self) -> str:
        weights = [_mib(self.weights_bytes)] if self.weights_bytes or not self.mapped_bytes else []
        weights += [f"{_mib(self.mapped_bytes)} mapped from the file"] if self.mapped_bytes else []
        return (
            f"{self.device} ({self.description}): weights {' + '.join(weights)}, "
            f"cache {_mib(self.cache_bytes)} ({self.n_slots} x {self.n_ctx} tokens), "
            f"results {_mib(self.compute_bytes)}"
        )


class Placements(tuple[Placement, ...]):
    """The placements of all ranks; as text one line, or for several ranks a table."""

    def __str__(self) -> str:
        if len(self) == 1:
            return str(self[0])
        table = [_HEADER, *(_cells(placement) for placement in self)]
        widths = [max(map(len, column)) for column in zip(*table)]
        kept = [i for i, column in enumerate(zip(*table)) if any(column[1:])]
        lines = ("  ".join(line[i].ljust(widths[i]) for i in kept).rstrip() for line in table)
        return f"{self[0].n_slots} x {self[0].n_ctx} tokens on {len(self)} ranks\n" + "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, and the sums over ranks, for JSON."""
        sizes = ("weights_bytes", "mapped_bytes", "cache_bytes", "compute_bytes", "n_bytes")
        return {
            "n_ctx": self[0].n_ctx,
            "n_slots": self[0].n_slots,
            **{name: sum(getattr(placement, name) for placement in self) for name in sizes},
            "ranks": [asdict(placement) for placement in self],
        }


_HEADER = (
    "device", "layers", "heads", "KV heads", "weights", "replicated", "mapped", "cache", "results", "total",
)  # fmt: skip


def _cells(p: Placement) -> tuple[str, ...]:
    """One rank's line of the table; what no rank has is left out."""
    sizes = (p.weights_bytes, p.replicated_bytes, p.mapped_bytes, p.cache_bytes, p.compute_bytes, p.n_bytes)
    n_head_kv = "" if p.n_head_kv is None else str(p.n_head_kv)
    return (p.device, _run(p.layers), _run(p.heads), n_head_kv, *(_mib(n) if n else "" for n in sizes))


def _run(span: Span | None) -> str:
    if span is None:
        return ""
    return f"{span[0]}-{span[1] - 1}" if span[0] < span[1] else "none"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.0f} MiB"
