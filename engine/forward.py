"""One pass of the model as a graph under construction, on one rank.

A family's forward() strings blocks together; what the blocks need, from weights and cache to the
inputs that change from step to step, they find here. Number of heads and widths come from the
weights as they lie on this rank, never from the hyperparameters, so that blocks need not know
whether the model is cut. Used once per plan, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyggml as gg

from .hparams import HParams
from .kv_cache import KVCache


@dataclass(frozen=True)
class PlanShape:
    """Everything that decides a graph.

    `n_seq` slots from `slot0` on take part with `n_tokens` tokens each (padding included) and see
    the first `n_kv` rows of their slots; `n_out` tokens get logits.
    """

    n_tokens: int
    n_seq: int
    slot0: int
    n_kv: int
    n_out: int

    @property
    def n_rows(self) -> int:
        """Tokens in the whole batch."""
        return self.n_tokens * self.n_seq


class Forward:
    """The graph being built and what its blocks share.

    Inputs: tokens or embd, positions, kv_rows (where K and V are written), mask and mask_swa
    [n_seq, 1, n_tokens, n_kv], out_rows (which tokens get logits).
    """

    def __init__(
        self, graph: gg.Graph, hp: HParams, weights: Mapping[str, gg.Tensor], cache: KVCache, shape: PlanShape
    ) -> None:
        self.graph = graph
        self.hp = hp
        self.cache = cache
        self.shape = shape
        self._weights = weights
        self._used: dict[str, gg.Tensor] = {}
        self.positions = graph.input("positions", (shape.n_rows,), "i32")
        self.kv_rows = graph.input("kv_rows", (shape.n_rows,), "i64")
        self._masks: dict[str, gg.Tensor] = {}
        self._out_rows: gg.Tensor | None = None

    def weight(self, name: str) -> gg.Tensor:
        """A weight that the family requires."""
        if name not in self._used:
            self._used[name] = self.graph.use(self._weights[name])
        return self._used[name]

    def maybe(self, name: str) -> gg.Tensor | None:
        """A weight that files may lack."""
        return self.weight(name) if name in self._weights else None

    def embed(self) -> gg.Tensor:
        """The embedded tokens, [n_rows, n_embd]; rows are looked up on the host where the device cannot."""
        table = self.weight("token_embd.weight") if "token_embd.weight" in self._weights else None
        if table is not None:
            tokens = self.graph.input("tokens", (self.shape.n_rows,), "i32")
            x = gg.get_rows(table, tokens)
        else:
            x = self.graph.input("embd", (self.shape.n_rows, self.hp.n_embd))
        return x if self.hp.embedding_scale == 1.0 else x * self.hp.embedding_scale

    def mask(self, swa: bool) -> gg.Tensor:
        """What each token may see, for layers with or without a sliding window."""
        name = "mask_swa" if swa else "mask"
        if name not in self._masks:
            s = self.shape
            self._masks[name] = self.graph.input(name, (s.n_seq, 1, s.n_tokens, s.n_kv), "f16")
        return self._masks[name]

    def norm(self, x: gg.Tensor, name: str) -> gg.Tensor:
        """RMS norm with its weight."""
        return gg.rms_norm(x, self.hp.norm_eps) * self.weight(f"{name}.weight")

    def linear(self, x: gg.Tensor, name: str) -> gg.Tensor:
        """Multiply by a projection and add its bias where the file has one."""
        y = gg.mul_mat(self.weight(f"{name}.weight"), x)
        bias = self.maybe(f"{name}.bias")
        return y if bias is None else y + bias

    def reduce(self, x: gg.Tensor) -> gg.Tensor:
        """The sum of this node over all ranks; with one rank the node itself."""
        return x

    def pick(self, x: gg.Tensor) -> gg.Tensor:
        """Only the rows whose logits are wanted, [n_out, n]."""
        if self.shape.n_out == self.shape.n_rows:
            return x
        if self._out_rows is None:
            self._out_rows = self.graph.input("out_rows", (self.shape.n_out,), "i32")
        return gg.get_rows(x, self._out_rows)

    def head(self, x: gg.Tensor) -> gg.Tensor:
        """Logits, [n_out, n_vocab]."""
        logits = self.linear(self.norm(x, "output_norm"), "output")
        cap = self.hp.final_softcap
        return gg.tanh(logits * (1.0 / cap)) * cap if cap else logits
