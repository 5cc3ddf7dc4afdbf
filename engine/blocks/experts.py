"""A feed-forward of experts: a router picks n_expert_used of them for each token.

The weights of the chosen ones are normalised to one by `normalise` (Mixtral, Qwen 3).
"""

from __future__ import annotations

import math

import pyggml as gg

from ..forward import Forward

# The smallest normal float16: keeps a token whose chosen experts all underflow from dividing by 0.
_SMALLEST = 2.0**-14


def experts(f: Forward, i: int, x: gg.Tensor, *, normalise: bool = True) -> gg.Tensor:
    """The weighted sum of the chosen experts' outputs.

    Shapes: [n, n_embd] -> [n, n_embd], reduced over ranks.
    """
    hp, b = f.hp, f"blk.{i}."
    n, used = x.shape[0], hp.n_expert_used
    has_part = f.maybe(b + "ffn_down_exps.weight") is not None
    if not has_part and not f.is_mixed:
        return f.nothing(x)
    ids, weights = route(f, gg.mul_mat(f.weight(b + "ffn_gate_inp.weight"), x), normalise)
    if not has_part:  # it took part in rank 0's choice, as all ranks must
        return f.nothing(x)
    n_here = f.weight(b + "ffn_down_exps.weight").shape[0]
    if n_here < hp.n_expert:
        ids, weights = _local(f, ids, weights, n_here)
        used = ids.shape[1]
    rows = x.reshape(n, 1, hp.n_embd)
    up = gg.mul_mat_id(f.weight(b + "ffn_up_exps.weight"), rows, ids)
    gate = gg.mul_mat_id(f.weight(b + "ffn_gate_exps.weight"), rows, ids)
    each = gg.mul_mat_id(f.weight(b + "ffn_down_exps.weight"), gg.swiglu(gate, up), ids) * weights
    total = each[:, 0, :]
    for expert in range(1, used):
        total = total + each[:, expert, :]
    return f.reduce(total if used > 1 else total.cont())


def route(f: Forward, logits: gg.Tensor, normalise: bool) -> tuple[gg.Tensor, gg.Tensor]:
    """Choose experts: ids int32 [n, n_used] and their weights [n, n_used, 1]."""
    hp = f.hp
    n = logits.shape[0]
    probabilities = gg.soft_max(logits)
    ids = gg.top_k(probabilities, hp.n_expert_used)
    weights = gg.get_rows(probabilities.reshape(n, hp.n_expert, 1), ids)
    if normalise:
        flat = weights.reshape(n, hp.n_expert_used)
        total = gg.clamp(gg.sum_rows(flat), _SMALLEST, math.inf)
        weights = (flat / total).reshape(n, hp.n_expert_used, 1)
    if hp.expert_weights_scale != 1.0:
        weights = weights * hp.expert_weights_scale
    if f.is_mixed:
        # Other kernels may order a near-tie differently: all ranks take rank 0's choice.
        return f.graph.broadcast(ids.cont()), f.graph.broadcast(weights.cont())
    return ids, weights


def _local(f: Forward, ids: gg.Tensor, weights: gg.Tensor, n_here: int) -> tuple[gg.Tensor, gg.Tensor]:
    """The same choice among the whole experts of this rank, by their local numbers.

    Chosen experts of other ranks leave places that are filled by ones of weight 0: mul_mat_id must
    not get one id twice for a token.
    """
    n = ids.shape[0]
    nothing = gg.repeat(weights[:, :1, :].cont(), (n, f.hp.n_expert, 1)) * 0.0
    dense = gg.set_rows(nothing, weights, ids.cont())
    here = dense[:, f.first_expert : f.first_expert + n_here, :].cont()
    chosen = gg.top_k(here.reshape(n, n_here), min(f.hp.n_expert_used, n_here))
    return chosen, gg.get_rows(here, chosen)
