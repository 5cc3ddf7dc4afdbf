"""A feed-forward of experts: a router picks n_expert_used of them for each token.

Beside them may stand a shared expert that all tokens go through. Optional parts (biases, scales)
are there when their weights are.
"""

from __future__ import annotations

import math

import pyggml as gg

from ..forward import Forward
from .feed_forward import Gate, dense

# The smallest normal float16: keeps a token whose chosen experts all underflow from dividing by 0.
_SMALLEST = 2.0**-14


def experts(f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu, *, f32: bool = False) -> gg.Tensor:
    """The weighted sum of the chosen experts' outputs, and the shared expert's output where there is one.

    Shapes: [n, n_embd] -> [n, n_embd], reduced over ranks. `f32` as in feed_forward.
    """
    parts = [
        part for part in (routed(f, i, x, gate=gate), shared(f, i, x, gate, f32=f32)) if part is not None
    ]
    if not parts:
        return f.nothing(x)
    return f.reduce(parts[0] if len(parts) == 1 else parts[0] + parts[1])


def shared(
    f: Forward, i: int, x: gg.Tensor, gate: Gate = gg.swiglu, *, f32: bool = False
) -> gg.Tensor | None:
    """This rank's part of the shared expert, which may have a gate by token; None where it has none."""
    part = dense(f, i, x, gate, suffix="_shexp", f32=f32)
    by_token = f.maybe(f"blk.{i}.ffn_gate_inp_shexp.weight")
    if part is None or by_token is None:
        return part
    return part * gg.sigmoid(gg.mul_mat(by_token.reshape(1, -1), x))


def routed(
    f: Forward, i: int, x: gg.Tensor, logits: gg.Tensor | None = None, *, gate: Gate = gg.swiglu
) -> gg.Tensor | None:
    """This rank's part of the weighted sum of the chosen experts' outputs; None where it has none.

    Shapes: x [n, n_embd], the router's logits [n, n_expert] if they are not made of x -> [n, n_embd].
    """
    hp, b = f.hp, f"blk.{i}."
    has_part = f.maybe(b + "ffn_down_exps.weight") is not None
    if not has_part and not f.is_mixed:
        return None
    logits = f.linear(x, b + "ffn_gate_inp") if logits is None else logits
    ids, weights = route(f, logits, f.maybe(b + "exp_probs_b.bias"))
    if not has_part:  # it took part in rank 0's choice, as all ranks must
        return None
    n, n_here = x.shape[0], f.weight(b + "ffn_down_exps.weight").shape[0]
    if n_here < hp.n_expert:
        ids, weights = _local(f, ids, weights, n_here)
    rows = x.reshape(n, 1, hp.n_embd)
    if hp.router.weighs_inputs:
        rows = gg.repeat(rows, (n, ids.shape[1], hp.n_embd)) * weights
    hidden = gate(_project(f, b + "ffn_gate_exps", rows, ids), _project(f, b + "ffn_up_exps", rows, ids))
    each = _project(f, b + "ffn_down_exps", hidden, ids)
    if not hp.router.weighs_inputs:
        each = each * weights
    total = each[:, 0, :]
    for expert in range(1, ids.shape[1]):
        total = total + each[:, expert, :]
    return total if ids.shape[1] > 1 else total.cont()


def _project(f: Forward, name: str, rows: gg.Tensor, ids: gg.Tensor) -> gg.Tensor:
    """Each token's rows by the matrices of its experts, with their scales and biases where the file has them."""
    y = gg.mul_mat_id(f.weight(f"{name}.weight"), rows, ids)
    scales = f.maybe(f"{name}.scale")
    if scales is not None:
        y = y * gg.get_rows(scales.reshape(-1, 1), ids.cont().reshape(-1)).reshape(*ids.shape, 1)
    bias = f.maybe(f"{name}.bias")
    return y if bias is None else gg.add_id(y, bias, ids)


def route(f: Forward, logits: gg.Tensor, bias: gg.Tensor | None) -> tuple[gg.Tensor, gg.Tensor]:
    """Choose experts: ids int32 [n, n_used] and their weights [n, n_used, 1].

    `bias` [n_expert] favours some in the choice but not in the weights.
    """
    hp, router = f.hp, f.hp.router
    n, used = logits.shape[0], hp.n_expert_used
    scores = {"softmax": gg.soft_max, "sigmoid": gg.sigmoid}.get(router.kind, lambda x: x)(logits)
    choice = scores if bias is None else scores + bias
    if router.n_group > 1:
        choice = _in_best_groups(choice, router.n_group, router.n_group_used)
    ids = gg.top_k(choice, used)
    weights = gg.get_rows(scores.reshape(n, hp.n_expert, 1), ids)
    if router.kind == "chosen":
        weights = gg.soft_max(weights.reshape(n, used)).reshape(n, used, 1)
    if router.normalise:
        flat = weights.reshape(n, used)
        total = gg.clamp(gg.sum_rows(flat), _SMALLEST, math.inf)
        weights = (flat / total).reshape(n, used, 1)
    if hp.expert_weights_scale != 1.0:
        weights = weights * hp.expert_weights_scale
    f.graph.do(weights)  # ggml's CUDA code makes one kernel of these nodes where they follow one another
    if f.is_mixed:
        # Other kernels may order a near-tie differently: all ranks take rank 0's choice.
        return f.graph.broadcast(ids.cont()), f.graph.broadcast(weights.cont())
    return ids, weights


def _in_best_groups(choice: gg.Tensor, n_group: int, n_used: int) -> gg.Tensor:
    """The scores of experts in the best groups, -inf elsewhere; a group is as good as its two best experts.

    Shapes: [n, n_expert] -> the same.
    """
    n, n_expert = choice.shape
    groups = choice.reshape(n, n_group, n_expert // n_group)
    two = gg.get_rows(groups.reshape(n, n_group, n_expert // n_group, 1), gg.top_k(groups, 2))
    best = gg.top_k(gg.sum_rows(two.reshape(n, n_group, 2)).reshape(n, n_group), n_used)
    nothing = groups * 0.0 + -math.inf
    return gg.set_rows(nothing, gg.get_rows(groups, best), best.cont()).reshape(n, n_expert)


def _local(f: Forward, ids: gg.Tensor, weights: gg.Tensor, n_here: int) -> tuple[gg.Tensor, gg.Tensor]:
    """The same choice among the whole experts of this rank, by their local numbers.

    Chosen experts of other ranks leave places that are filled by ones of weight 0: mul_mat_id must
    not get one id twice for a token.
    """
    n = ids.shape[0]
    nothing = gg.repeat(weights[:, :1, :].cont(), (n, f.hp.n_expert, 1)) * 0.0
    dense_weights = gg.set_rows(nothing, weights, ids.cont())
    here = dense_weights[:, f.first_expert : f.first_expert + n_here, :].cont()
    chosen = gg.top_k(here.reshape(n, n_here), min(f.hp.n_expert_used, n_here))
    return chosen, gg.get_rows(here, chosen)
