"""One pass of the model as a graph under construction, on one rank.

A family's forward() strings blocks together; what the blocks need, from weights and cache to the
inputs that change from step to step, they find here. Numbers of heads and widths come from the
weights as they lie on this rank, never from the hyperparameters, so that blocks need not know
whether the model is cut. Used once per plan, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyggml as gg

from .hparams import HParams
from .kv_cache import KVCache

# Tables whose rows the host may look up -> the inputs that have the rows then.
HOST_FEEDS = {"token_embd.weight": "embd", "per_layer_token_embd.weight": "per_layer_embd"}


class PlanShape(NamedTuple):
    """Everything that decides a graph; a key of plans, made and looked up each step.

    `n_seq` slots from `slot0` on take part with `n_tokens` tokens each (padding included) and see
    the first `n_kv` rows of their slots; `n_out` tokens get logits. Plans of different `lane` are
    otherwise the same: their host arrays differ, so that several can be in flight. Where attention takes
    any length, a plan is made for the longest window of slot 0 and moved to where a step needs it. With `is_hidden`
    the result is the hidden state behind the last norm in place of logits. Plans that are `is_beside` compute in memory
    of their own, so that they can take turns with one that is not.
    """

    n_tokens: int
    n_seq: int
    slot0: int
    n_kv: int
    n_out: int
    lane: int = 0
    is_hidden: bool = False
    is_beside: bool = False

    @property
    def n_rows(self) -> int:
        """Tokens in the whole batch."""
        return self.n_tokens * self.n_seq


class Forward:
    """The graph being built and what its blocks share.

    `layers` are those of this rank's stage; a stage that is not the first receives the hidden state
    from the rank before, one that is not the last hands it on. `is_mixed` says that ranks which cut
    layers among them compute with different kernels; `first_expert` is the number of this rank's first
    expert where whole experts are dealt. Inputs: tokens or embd, positions,
    kv_rows (where K and V are written), mask and mask_swa [n_seq, 1, n_tokens, n_kv], temperature, out_rows
    (which tokens get logits). `tables` has the cache's tables of each layer after this pass has written them.
    """

    def __init__(
        self,
        graph: gg.RankGraph,
        hp: HParams,
        weights: Mapping[str, gg.Tensor],
        cache: KVCache,
        shape: PlanShape,
        *,
        layers: range,
        is_split_by_layer: bool = False,
        is_mixed: bool = False,
        first_expert: int = 0,
    ) -> None:
        self.graph = graph
        self.hp = hp
        self.cache = cache
        self.shape = shape
        self.layers = layers
        self.is_mixed = is_mixed
        self.first_expert = first_expert
        self._is_split_by_layer = is_split_by_layer
        self._weights = weights
        self._used: dict[str, gg.Tensor] = {}
        self._masks: dict[str, gg.Tensor] = {}
        self._out_rows: gg.Tensor | None = None
        self._temperature: gg.Tensor | None = None
        self._tokens: gg.Tensor | None = None
        self.tables: dict[int, list[gg.Tensor]] = {}
        self.positions = graph.input("positions", (shape.n_rows,), "i32")
        self.kv_rows = graph.input("kv_rows", (shape.n_rows,), "i64")

    @property
    def is_first(self) -> bool:
        """Whether this rank embeds the tokens."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank makes the logits."""
        return self.layers.stop == self.hp.n_layer

    def weight(self, name: str) -> gg.Tensor:
        """A weight that the family requires."""
        if name not in self._used:
            self._used[name] = self.graph.use(self._weights[name])
        return self._used[name]

    def maybe(self, name: str) -> gg.Tensor | None:
        """A weight that files, or this rank's share of the model, may lack."""
        return self.weight(name) if name in self._weights else None

    def enter(self) -> gg.Tensor:
        """What the first layer of this rank works on, [n_rows, n_embd].

        The embedded tokens, whose rows are looked up on the host where the device cannot, or the
        hidden state of the stage before.
        """
        shape = (self.shape.n_rows, self.hp.n_embd)
        if not self.is_first:
            return self.graph.recv(shape, source=self.graph.rank - 1)
        x = self.rows("token_embd.weight", self.hp.n_embd)
        return x if self.hp.embedding_scale == 1.0 else x * self.hp.embedding_scale

    def rows(self, name: str, n: int) -> gg.Tensor:
        """The rows of a table by token, [n_rows, n], looked up on the host where the device cannot."""
        table = self.maybe(name)
        if table is None:
            return self.graph.input(HOST_FEEDS[name], (self.shape.n_rows, n))
        if self._tokens is None:
            self._tokens = self.graph.input("tokens", (self.shape.n_rows,), "i32")
        return gg.get_rows(table, self._tokens)

    def leave(self, x: gg.Tensor) -> gg.Tensor | None:
        """Hand the hidden state to the next stage, or turn it into logits [n_out, n_vocab of this rank]."""
        if not self.is_last:
            self.graph.send(x, to=self.graph.rank + 1)
            return None
        if self.shape.is_hidden:  # ranks that cut layers all have it
            return self.norm(x, "output_norm") if self._is_split_by_layer or self.graph.rank == 0 else None
        if self.maybe("output.weight") is None:
            return None  # another rank has the head
        logits = self.linear(self.norm(x, "output_norm"), "output")
        if self.hp.logit_scale != 1.0:
            logits = logits * self.hp.logit_scale
        cap = self.hp.final_softcap
        return gg.tanh(logits * (1.0 / cap)) * cap if cap else logits

    def mask(self, swa: bool) -> gg.Tensor:
        """What each token may see, for layers with or without a sliding window."""
        name = "mask_swa" if swa else "mask"
        if name not in self._masks:
            s = self.shape
            shape = (s.n_seq, 1, s.n_tokens, s.n_kv)
            if swa and self.hp.is_chunked:
                mask = self.graph.input(name, shape, "f16")
            else:
                mask = self.graph.causal_mask(name, self.positions, shape, self.hp.n_swa if swa else 0)
            self._masks[name] = self.graph.let_move(mask, 3)
        return self._masks[name]

    def temperature(self) -> gg.Tensor:
        """What the queries of each token are multiplied by, [n_rows, 1, 1]."""
        if self._temperature is None:
            self._temperature = self.graph.input("temperature", (self.shape.n_rows, 1, 1))
        return self._temperature

    def norm(self, x: gg.Tensor, name: str, eps: float | None = None) -> gg.Tensor:
        """The model's kind of norm with its weight, and its bias where the file has one."""
        normed = (gg.norm if self.hp.is_layer_norm else gg.rms_norm)(
            x, self.hp.norm_eps if eps is None else eps
        )
        return self._with_bias(normed * self.weight(f"{name}.weight"), name)

    def linear(self, x: gg.Tensor, name: str, *, f32: bool = False) -> gg.Tensor:
        """Multiply by a projection, with its scale and bias where it has them; `f32` asks for float32 accumulation."""
        y = gg.mul_mat(self.weight(f"{name}.weight"), x, f32=f32)
        scale = self.maybe(f"{name}.scale")
        return self._with_bias(y if scale is None else y * scale, name)

    def _with_bias(self, x: gg.Tensor, name: str) -> gg.Tensor:
        bias = self.maybe(f"{name}.bias")
        return x if bias is None else x + bias

    @property
    def is_cut(self) -> bool:
        """Whether ranks cut layers among them."""
        return self.graph.n_ranks > 1 and not self._is_split_by_layer

    def reduce(self, x: gg.Tensor) -> gg.Tensor:
        """The sum of this node over the ranks that cut a layer among them."""
        return self.graph.all_reduce(x) if self.is_cut else x

    def nothing(self, x: gg.Tensor) -> gg.Tensor:
        """The contribution to a sum of a rank that holds no part of a layer."""
        return self.reduce(x * 0.0)

    def pick(self, x: gg.Tensor) -> gg.Tensor:
        """Only the rows whose logits are wanted, [n_out, n]."""
        if self.shape.n_out == self.shape.n_rows:
            return x
        if self._out_rows is None:
            self._out_rows = self.graph.input("out_rows", (self.shape.n_out,), "i32")
        return gg.get_rows(x, self._out_rows)
