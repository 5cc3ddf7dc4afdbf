"""Tensor parallelism on paper: which rows and columns of every weight each rank gets.

Reads the family's table and the element types in the file; touches no tensor. Cuts fall on the
blocks of every tensor that they pass through. Partial results are summed over all ranks, twice
in most layers; what is added after such a sum (biases of attn_output and ffn_down) lies on one rank only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .balance import MAX_RANKS, Span, check_n_ranks, checked_shares, deal_spans
from .errors import ConfigError
from .head_cuts import head_cuts, kv_heads_of
from .hparams import HParams
from .slices import WHOLE, Axis, ElementType, Slice, slice_of_spans
from .weight_table import Cut, Weight

EXPERT_SPLITS = ("inside", "experts")
# Kernels like rows and columns in multiples of this; kept where every rank gets four or more.
_ROUND = 32

Slices = tuple[Slice | None, ...]


@dataclass(frozen=True)
class RankCut:
    """What one rank has of heads, vocabulary and, where they are dealt whole, experts.

    `kv_heads` are the model's numbers of the key/value heads in the rank's order, of layers without a window where
    those with one have others; local query head h attends with local key/value head h // (n_head // n_head_kv).
    """

    share: float
    heads: Span
    kv_heads: tuple[int, ...]
    vocab: Span
    experts: Span | None = None

    @property
    def n_head(self) -> int:
        """Query heads of this rank, possibly none."""
        return self.heads[1] - self.heads[0]

    @property
    def n_head_kv(self) -> int:
        """Key/value heads in this rank's cache."""
        return len(self.kv_heads)


@dataclass(frozen=True)
class TensorPlan:
    """A model cut over ranks.

    `ffn` has the columns of each feed-forward that is cut inside, by what its tensors' names share
    ("blk.0.ffn", "blk.0.ffn_exps"). `sum_widths` has, for each sum over all ranks in one pass, how many numbers
    of a token it sums. The bytes count each rank's cut and uncut weights.
    """

    ranks: tuple[RankCut, ...]
    ffn: Mapping[str, tuple[Span, ...]]
    slices: Mapping[str, Slices]
    sum_widths: tuple[int, ...]
    cut_bytes: tuple[int, ...]
    whole_bytes: tuple[int, ...]
    notes: tuple[str, ...]

    @property
    def n_reduces(self) -> int:
        """The sums over all ranks in one pass."""
        return len(self.sum_widths)

    def slice_of(self, name: str, rank: int) -> Slice | None:
        """The rank's part of a weight, None where it has none."""
        return self.slices[name][rank]

    @property
    def idle(self) -> tuple[int, ...]:
        """Ranks with a share that is too small for any head, feed-forward column or expert."""
        return tuple(
            r
            for r, rank in enumerate(self.ranks)
            if rank.share > 0
            and rank.n_head == 0
            and all(spans[r][0] == spans[r][1] for spans in self.ffn.values())
            and (rank.experts is None or rank.experts[0] == rank.experts[1])
        )


@dataclass(frozen=True)
class Degree:
    """Whether a model can be cut over so many ranks evenly; `obstacle` says why not.

    `fullest` is the fullest rank's cut weights over an even part: 1 is perfect, 2 takes twice as long.
    """

    n_ranks: int
    obstacle: str
    fullest: float
    notes: tuple[str, ...]


def tp_cuts(
    hp: HParams,
    rows: Iterable[Weight],
    types: Mapping[str, ElementType],
    shares: Sequence[float],
    *,
    expert_split: str = "inside",
) -> TensorPlan:
    """Cut every weight that the file has over as many ranks as there are shares.

    `types` has the weights that exist, by the table's names. Experts are cut inside, or with
    `expert_split` "experts" dealt whole. Raises ConfigError for shares or a degree that do not work.
    """
    check_n_ranks("tp", len(shares))
    shares = checked_shares(shares)
    if expert_split not in EXPERT_SPLITS:
        raise ConfigError(f"expert-split = {expert_split!r}; {' and '.join(EXPERT_SPLITS)} are supported")
    if expert_split == "experts" and not hp.n_expert:
        raise ConfigError("expert-split = 'experts'; the model has no experts, and 'inside' is the default")
    rows = list(rows)
    plan = _cut(hp, rows, types, shares, expert_split)
    obstacle = _obstacle(hp, plan)
    if not obstacle:
        return plan
    if plan.idle and len(set(shares)) > 1:
        shown = ",".join(f"{share:g}" for share in shares)
        raise ConfigError(
            f"tensor-split = {shown}: {obstacle}; a larger share works, and 0 leaves the rank out"
        )
    degrees = valid_degrees(hp, rows, types, expert_split=expert_split)
    works = ", ".join(str(d.n_ranks) for d in degrees if not d.obstacle)
    n_split = 1 if hp.split_obstacle else min(len(shares), hp.n_layer)
    works += f", or with --layer-split {n_split}" if n_split > 1 else ""
    raise ConfigError(f"tp = {len(shares)} for {hp.arch}: {obstacle}; this file works with tp {works}")


def valid_degrees(
    hp: HParams, rows: Iterable[Weight], types: Mapping[str, ElementType], *, expert_split: str = "inside"
) -> tuple[Degree, ...]:
    """Every degree up to the limit with its obstacle, if any, for even shares."""
    rows = list(rows)
    degrees = []
    for n in range(1, MAX_RANKS + 1):
        plan = _cut(hp, rows, types, (1.0,) * n, expert_split)
        fullest = max(plan.cut_bytes) * n / max(1, sum(plan.cut_bytes))
        degrees.append(Degree(n, _obstacle(hp, plan), fullest, plan.notes))
    return tuple(degrees)


def _obstacle(hp: HParams, plan: TensorPlan) -> str:
    """Why the plan does not work, "" where it does."""
    if plan.idle:
        return f"rank {plan.idle[0]} would hold no heads and no feed-forward columns"
    if hp.has_wide_qk_norm and sum(rank.n_head_kv for rank in plan.ranks) > hp.n_head_kv:
        return f"K is normed over its {hp.n_head_kv} heads at once, and ranks with copies of one would count it twice"
    return ""


def _cut(
    hp: HParams,
    rows: Iterable[Weight],
    types: Mapping[str, ElementType],
    shares: tuple[float, ...],
    expert_split: str,
) -> TensorPlan:
    present = [row for row in rows if row.name in types]
    n_head_kv = min(hp.heads(i).n_head_kv for i in range(hp.n_layer))
    heads = head_cuts(hp.n_head, n_head_kv, _head_unit(hp, present, types), shares)
    vocab = _columns(hp.n_vocab, 1, shares)
    has_whole_experts = bool(hp.n_expert) and expert_split == "experts"
    experts = deal_spans(hp.n_expert, 1, shares) if has_whole_experts else (None,) * len(shares)
    ffn = {
        _feed_forward(row.name): _columns(row.shape[-1], types[row.name].block_size, shares)
        for row in present
        if row.cut is Cut.IN and not (has_whole_experts and _is_expert(row))
    }
    kv_heads = [kv_heads_of(span, hp.n_head // hp.n_head_kv) for span in heads]
    ranks = tuple(map(RankCut, shares, heads, kv_heads, vocab, experts))
    cutter = _Cutter(hp, ranks, ffn, {row.name: row for row in present})
    slices = {row.name: cutter.slices(row) for row in present}
    cut_bytes, whole_bytes = [0] * len(ranks), [0] * len(ranks)
    for row in present:
        for r, part in enumerate(slices[row.name]):
            if part is not None:
                (whole_bytes if part is WHOLE else cut_bytes)[r] += part.n_bytes(row.shape, types[row.name])
    sum_widths = _sum_widths(hp, present) if sum(share > 0 for share in shares) > 1 else ()
    blocks = {_feed_forward(row.name): types[row.name].block_size for row in present if row.cut is Cut.IN}
    notes = _notes(hp, ranks, ffn, blocks)
    return TensorPlan(ranks, ffn, slices, sum_widths, tuple(cut_bytes), tuple(whole_bytes), notes)


def _sum_widths(hp: HParams, rows: Iterable[Weight]) -> tuple[int, ...]:
    """Numbers of a token in each sum of a pass: a shared expert's part goes with the others', wide norms add a pair."""
    ends = (Cut.HEADS_IN, Cut.IN)
    n_whole = sum(row.cut in ends and not row.name.endswith("_shexp.weight") for row in rows)
    return (hp.n_embd,) * n_whole + ((2,) * hp.n_layer if hp.has_wide_qk_norm else ())


def _head_unit(hp: HParams, rows: Iterable[Weight], types: Mapping[str, ElementType]) -> int:
    """The least number of heads whose columns are whole blocks in every weight that is cut so."""
    units = [1]
    for row in rows:
        if row.cut is Cut.HEADS_IN:
            block = types[row.name].block_size
            units.append(block // math.gcd(block, row.shape[-1] // hp.n_head))
    return math.lcm(*units)


def _columns(n: int, block: int, shares: Sequence[float]) -> tuple[Span, ...]:
    """Spans of whole blocks, rounded where that is small beside the spans."""
    wide = math.lcm(block, _ROUND)
    return deal_spans(n, wide if n >= 4 * len(shares) * wide else block, shares)


def _is_bias(row: Weight) -> bool:
    return row.name.endswith(".bias")


def _is_expert(row: Weight) -> bool:
    return "_exps." in row.name


def _feed_forward(name: str) -> str:
    """What the names of one feed-forward's tensors share: blk.0.ffn, blk.0.ffn_exps."""
    return re.sub(r"ffn_(gate_up|gate|up|down)", "ffn", name.rsplit(".", 1)[0])


@dataclass(frozen=True)
class _Cutter:
    """Slices of single weights, all ranks at once."""

    hp: HParams
    ranks: tuple[RankCut, ...]
    ffn: Mapping[str, tuple[Span, ...]]
    rows: Mapping[str, Weight] = field(repr=False)

    def slices(self, row: Weight) -> Slices:
        """Each rank's slice of one weight."""
        if _is_expert(row) and self.ranks[0].experts is not None:
            return self._each(Axis.EXPERTS, 0, [[rank.experts or (0, 0)] for rank in self.ranks])
        last = len(row.shape) - 1
        out = last if _is_bias(row) else last - 1
        match row.cut:
            case Cut.VOCAB:
                return self._each(Axis.OUT, out, [[rank.vocab] for rank in self.ranks])
            case Cut.HEADS:
                return self._each(Axis.OUT, 0, self._head_spans(row.shape[0]))
            case Cut.HEADS_KV:
                n_head_kv = self.hp.heads(int(row.name.split(".")[1])).n_head_kv
                n, group = row.shape[0] // n_head_kv, self.hp.n_head // n_head_kv
                held = [kv_heads_of(rank.heads, group) for rank in self.ranks]
                return self._each(Axis.OUT, 0, [[(kv * n, kv * n + n) for kv in of_rank] for of_rank in held])
            case Cut.HEADS_IN:
                return self._each(Axis.IN, last, self._head_spans(row.shape[last]))
            case Cut.IN:
                return self._each(Axis.IN, last, [[span] for span in self.ffn[_feed_forward(row.name)]])
            case Cut.OUT:
                columns = self.ffn[_feed_forward(row.name)]
                # Gate and up in one tensor are two segments, each cut alike.
                segments = range(0, row.shape[out], columns[-1][1])
                return self._each(Axis.OUT, out, [[(at + a, at + b) for at in segments] for a, b in columns])
        return self._whole(row)

    def _whole(self, row: Weight) -> Slices:
        holders = [r for r, rank in enumerate(self.ranks) if rank.share > 0]
        weight = self.rows.get(row.name.removesuffix("bias") + "weight") if _is_bias(row) else None
        if weight is not None and weight.cut in (Cut.IN, Cut.HEADS_IN):
            holders = [r for r, part in enumerate(self.slices(weight)) if part is not None][:1]
        return tuple(WHOLE if r in holders else None for r in range(len(self.ranks)))

    def _head_spans(self, n: int) -> list[list[Span]]:
        each = n // self.hp.n_head
        return [[(rank.heads[0] * each, rank.heads[1] * each)] for rank in self.ranks]

    def _each(self, axis: Axis, dim: int, spans: Iterable[Iterable[Span]]) -> Slices:
        return tuple(slice_of_spans(axis, dim, of_rank) for of_rank in spans)


# A rank with so much more than its share of each expert makes the others wait for long enough to be worth a line.
_UNEVEN = 1.1


def _notes(
    hp: HParams, ranks: Sequence[RankCut], ffn: Mapping[str, tuple[Span, ...]], blocks: Mapping[str, int]
) -> tuple[str, ...]:
    """What is worth telling about a plan."""
    notes = []
    held = sum(rank.n_head_kv for rank in ranks)
    if held > hp.n_head_kv:
        most = max(rank.n_head_kv for rank in ranks)
        notes.append(
            f"n_head_kv = {hp.n_head_kv}: KV heads are copied, {held} in all, {most} on the fullest rank"
        )
    without = [str(r) for r, rank in enumerate(ranks) if rank.share > 0 and rank.n_head == 0]
    if without:
        notes.append(f"ranks without attention heads: {', '.join(without)}")
    shares = [rank.share / sum(rank.share for rank in ranks) for rank in ranks]
    cuts = {(spans, blocks[name]) for name, spans in ffn.items() if name.endswith("_exps") and blocks[name] > 1}
    for spans, block in sorted(cuts):
        n, widths = spans[-1][1], [stop - start for start, stop in spans]
        if any(width > _UNEVEN * n * share for width, share in zip(widths, shares)):
            shown = ",".join(map(str, widths))
            notes.append(
                f"each expert's {n} columns are cut {shown}, in whole blocks of {block}; compare --expert-split experts"
            )
    return tuple(notes)
