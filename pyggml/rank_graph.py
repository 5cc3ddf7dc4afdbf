"""The graph of one rank of a group, and what all ranks' graphs must agree on.

A collective cuts the graph: it takes part after the nodes that are there when it is called. Knows nothing of threads or
transports. One thread builds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._ffi import ffi, lib
from .backend import Backend
from .cuda_module import cuda_api
from .cut import cut_tensor
from .dtypes import DType
from .errors import ShapeError
from .graph import Graph
from .layout import Collective
from .reduce_type import reduce_dtype_for
from .shapes import cast
from .tensor import Tensor


class RankGraph(Graph):
    """The graph of one rank: a Graph that also knows its place and can take part in collectives.

    Every rank must build the same collectives in the same order. Large sums travel as `reduce_dtype`.
    """

    def __init__(
        self, backend: Backend, rank: int = 0, n_ranks: int = 1, *, reduce_dtype: str = "f32", **options: Any
    ) -> None:
        super().__init__(backend, **options)
        self.rank = rank
        self.n_ranks = n_ranks
        self.reduce_dtype = reduce_dtype

    @property
    def is_alone(self) -> bool:
        """Whether there are no other ranks."""
        return self.n_ranks == 1

    def weight(
        self, data: Any, *, type: str | DType | None = None, name: str = "", cut: str | None = None
    ) -> Tensor:
        """Upload a constant, or with `cut` this rank's slice of it, not requantised unless `type` is another.

        `cut="out"` takes whole output rows, `cut="in"` input columns on block boundaries.
        """
        if cut is not None:
            data = cut_tensor(data, cut, self.rank, self.n_ranks)
        return super().weight(data, type=type, name=name)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of this node over all ranks, bitwise the same on each.

        It takes the node's place for what is built afterwards, unless it travels in another type.
        """
        self._need(x.dtype.name == "f32" and x.is_contiguous, x, "all_reduce takes contiguous float32")
        kind = "f32" if self.is_alone else reduce_dtype_for(math.prod(x.shape), self.reduce_dtype)
        if kind == "f32":
            return self._collective(lib.PG_ALL_REDUCE, self._writable(x))
        return cast(self._collective(lib.PG_ALL_REDUCE, cast(x, kind)), "f32")

    def all_gather(self, x: Tensor) -> Tensor:
        """All ranks' tensors of one shape along a new outermost dimension, in rank order."""
        self._need(x.is_contiguous and x.ndim <= 3, x, "all_gather takes up to three contiguous dimensions")
        whole = self._leaf((self.n_ranks, *x.shape), x.dtype)
        self._collective(lib.PG_ALL_GATHER, x, whole)
        return whole

    def broadcast(self, x: Tensor, root: int = 0) -> Tensor:
        """The root's value of this node on every rank."""
        self._need(
            x.is_contiguous and 0 <= root < self.n_ranks,
            x,
            f"broadcast takes a root of 0 to {self.n_ranks - 1}",
        )
        return self._collective(lib.PG_BROADCAST, self._writable(x), peer=root)

    def send(self, x: Tensor, to: int) -> Tensor:
        """Hand this node to another rank, which must recv() it."""
        self._need(
            x.is_contiguous and 0 <= to < self.n_ranks and to != self.rank,
            x,
            f"send from rank {self.rank} to {to}",
        )
        return self._collective(lib.PG_SEND, x, peer=to)

    def recv(self, shape: Sequence[int], source: int, kind: str | DType = "f32") -> Tensor:
        """The tensor that another rank sends."""
        if not 0 <= source < self.n_ranks or source == self.rank:
            raise ShapeError(f"rank {self.rank} cannot recv from {source} in a group of {self.n_ranks}")
        x = self._leaf(shape, kind)
        self.collectives.append(Collective(self.n_nodes, lib.PG_RECV, x, peer=source))
        return x

    def choose(self, name: str, logits: Tensor) -> Tensor | None:
        """An output with the best of each row of logits, found on the card; read it by `chosen_candidates`.

        None where the device cannot: it is no CUDA card, or the rows are too long.
        Shapes: logits [n_rows, n_vocab] float32 -> int32 [n_rows, n].
        """
        self._need(
            logits.ndim == 2 and logits.dtype.name == "f32" and logits.is_contiguous,
            logits,
            "choose takes a contiguous float32 matrix",
        )
        api = cuda_api() if self.backend.device.module == "cuda" else None
        n_ints = 0 if api is None else int(api.choose_ints(*logits.shape))
        if not n_ints:
            return None
        self._keep_to_here(logits)
        found = self._leaf((n_ints,), "i32")
        self.collectives.append(Collective(self.n_nodes, lib.PG_CHOOSE, logits, found))
        self.read_part(name, found, (logits.shape[0], lib.PGC_CHOOSE_INTS))
        return found

    def causal_mask(self, name: str, positions: Tensor, shape: Sequence[int], window: int = 0) -> Tensor:
        """What the token at each position may see: made on a CUDA card, elsewhere an input of that name.

        It sees rows up to its own position, with a window only that many of them.
        Shapes: positions int32 [n_seq * n_tokens] -> float16 [n_seq, 1, n_tokens, n_kv], 0 or minus infinity.
        """
        if self.backend.device.module != "cuda" or cuda_api() is None:
            return self.input(name, shape, "f16")
        self._need(
            positions.shape == (shape[0] * shape[2],) and positions.dtype.name == "i32" and shape[1] == 1,
            positions,
            f"a mask {tuple(shape)} takes as many int32 positions as it has tokens",
        )
        mask = self._leaf(shape, "f16")
        self._keep_to_here(positions)
        self.collectives.append(Collective(self.n_nodes, lib.PG_MASK, mask, positions, window))
        return mask

    def _need(self, condition: bool, x: Tensor, words: str) -> None:
        if not condition:
            raise ShapeError(f"{words}; this is {x.shape} {x.dtype.name}")

    def _leaf(self, shape: Sequence[int], kind: str | DType) -> Tensor:
        leaf = self.phantom("", shape, kind)
        lib.ggml_set_input(leaf.handle)
        self.do(leaf)  # it needs memory also where nothing reads it
        return leaf

    def _keep_to_here(self, x: Tensor) -> None:
        """Let a step that comes next read x: the allocator does not see that it does."""
        n_before = self.n_nodes
        self.do(x)
        if self.n_nodes == n_before:
            # Nodes before this cut may have been x's last readers: its memory would be used again.
            lib.ggml_set_output(x.handle)
            if x.is_view:
                lib.ggml_set_output(x.handle.view_src)

    def _collective(self, op: int, x: Tensor, other: Tensor | None = None, peer: int = 0) -> Tensor:
        self._keep_to_here(x)
        self.collectives.append(Collective(self.n_nodes, op, x, other, peer))
        return x

    def _writable(self, x: Tensor) -> Tensor:
        """The node itself, or a copy of a weight or state, which a collective in place would change."""
        root = x.handle.view_src if x.is_view else x.handle
        return x if root.buffer == ffi.NULL else x.cont()


def check_collectives(graphs: Sequence[RankGraph]) -> None:
    """Ranks must agree on collectives, or they would wait for each other until the deadline."""
    meets = (lib.PG_ALL_REDUCE, lib.PG_ALL_GATHER, lib.PG_BROADCAST)
    orders = {
        r: [(c.op, c.tensor.shape, c.tensor.dtype.name) for c in g.collectives if c.op in meets]
        for r, g in enumerate(graphs)
    }
    first = orders[0]
    for rank, order in orders.items():
        if order != first:
            raise ShapeError(
                f"rank {rank} takes part in {len(order)} collectives {order[:3]}, rank 0 in {len(first)} {first[:3]}; "
                "all ranks need the same"
            )
    pairs: dict[tuple[int, int], list[list[Any]]] = {}
    for rank, graph in enumerate(graphs):
        for c in graph.collectives:
            if c.op in (lib.PG_SEND, lib.PG_RECV):
                key = (rank, c.peer) if c.op == lib.PG_SEND else (c.peer, rank)
                pairs.setdefault(key, [[], []])[c.op == lib.PG_RECV].append(
                    (c.tensor.shape, c.tensor.dtype.name)
                )
    for (source, to), (sent, received) in pairs.items():
        if sent != received:
            raise ShapeError(f"rank {source} sends {sent} to rank {to}, which receives {received}")
