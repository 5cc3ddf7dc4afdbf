"""From an arrangement to ranks: backends, weights, caches. All refusals come before the first weight is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

import pyggml as gg

from .arrangement import Arrangement, arrange, cache_facts
from .balance import DeviceFacts
from .demand import Demand, ModelFacts
from .device_facts import device_facts, serving_devices
from .kv_cache import KVCache
from .load_options import LoadOptions
from .measuring import main_type, measured
from .model import Model
from .placement import Placement
from .prediction import Mode
from .rank import Rank, Ranks
from .rank_loading import RankLoad, load_ranks
from .slices import WHOLE
from .weight_table import Use
from .weights import Part, Progress, Weights, layer_parts, tensor_parts, whole_parts

LOG = logging.getLogger("pyggml.engine")


class LoadedModel:
    """A model's ranks and backends. `n_ctx` is the context of one request; `notes` say why it lies as it does."""

    notes: tuple[str, ...]

    def __init__(self, model: Model, options: LoadOptions, progress: Progress | None = None) -> None:
        self._ranks: list[Rank] = []
        self._backends: list[gg.Backend] = []
        self._group: gg.Group | None = None
        self._model = model
        self._arranged = arranged = _arranged(model, options)
        self.n_ctx = arranged.n_ctx
        self._begin(progress)

    def rebuild(self) -> None:
        """Begin anew with the same arrangement after a fault closed the group of ranks; what it held is lost."""
        self.close()
        self._ranks, self._backends, self._group = [], [], None
        self._begin(None)

    def _begin(self, progress: Progress | None) -> None:
        model, arranged, deal = self._model, self._arranged, self._arranged.deal
        parts = [_parts(model, arranged, i) for i in range(len(deal.demands))]
        self._replicated_bytes = [0 if deal.cuts is None else _whole_bytes(of_rank) for of_rank in parts]
        try:
            self._open([gg.device(d.device.name) for d in deal.demands])
            self.notes = self._told()
            for backend, of_rank in zip(self._backends, parts):
                _check_types(backend, of_rank)
            self._load(model, parts, progress)
        except BaseException:
            self.close()
            raise
        by_layer = len(self._ranks) > 1 and deal.mode is Mode.LAYER
        self.ranks = Ranks(tuple(self._ranks), self._group, by_layer, arranged.options.cuda_graphs)

    def _open(self, devices: Sequence[gg.Device]) -> None:
        options = self._arranged.options
        if len(devices) == 1:
            self._backends = [gg.Backend(devices[0], threads=options.threads)]
        else:
            self._group = gg.Group(
                devices, threads=options.threads, transport=options.transport, reduce_dtype=options.reduce_dtype
            )
            self._backends = self._group.backends

    def _told(self) -> tuple[str, ...]:
        """The mode, why it lies so, and how the ranks exchange data; logged too."""
        deal, notes, options = self._arranged.deal, self._arranged.notes, self._arranged.options
        if options.n_ranks > 1 or self._group is not None:
            notes = (deal.title, *notes)
        if self._group is not None:
            notes = (*notes, *_transport_notes(self._group, deal.mode))
        else:
            notes = (*notes, *_unused_notes(options))
        notes = (*notes, *_graph_notes(self._backends, options))
        for note in notes:
            LOG.info("%s", note)
        return notes

    def _load(self, model: Model, parts: Sequence[list[Part]], progress: Progress | None) -> None:
        loads = []
        for i, (backend, of_rank) in enumerate(zip(self._backends, parts)):
            lane = f"rank {i}" if backend.device.kind == "cpu" else backend.device.name
            n_bytes = sum(part.n_bytes for part in of_rank)
            loads.append(RankLoad(lane, n_bytes, partial(self._rank, model, i, of_rank)))
        self._ranks = load_ranks(loads, progress)

    def _rank(self, model: Model, i: int, parts: Sequence[Part], progress: Progress) -> Rank:
        """Rank i with its weights and its empty cache."""
        options, deal, backend = self._arranged.options, self._arranged.deal, self._backends[i]
        demand, weights = deal.demands[i], Weights(backend, parts, progress)
        layers = range(*demand.layers)
        try:
            cache = KVCache(
                backend, model.hparams, n_slots=options.parallel, n_ctx=self.n_ctx, layers=layers,
                heads=demand.heads, type_k=options.cache_type_k, type_v=options.cache_type_v,
            )  # fmt: skip
        except BaseException:
            weights.close()
            raise
        experts = None if deal.cuts is None else deal.cuts.ranks[deal.ranks[i]].experts
        return Rank(backend, weights, cache, gg.Allocator(backend), layers, (experts or (0, 0))[0])

    @property
    def transports(self) -> tuple[str, ...]:
        """How sums over ranks travel, by their size; for one rank nothing."""
        if self._group is None or self._arranged.deal.mode is not Mode.TENSOR:
            return ()
        return tuple(_spans(self._group))

    @property
    def n_reduces(self) -> int:
        """Sums over ranks since the start."""
        return 0 if self._group is None or self._group.closed else self._group.n_reduces()

    @property
    def reduce_s(self) -> float:
        """Seconds that rank 0's thread spent in them; of those that a card does in its turn, their launches."""
        return 0.0 if self._group is None or self._group.closed else self._group.reduce_s()

    @property
    def placements(self) -> tuple[Placement, ...]:
        """What lies where, in bytes, a rank each."""
        demands, replicated = self._arranged.deal.demands, self._replicated_bytes
        return tuple(map(self._placement, self._ranks, demands, replicated))

    def _placement(self, rank: Rank, demand: Demand, replicated_bytes: int) -> Placement:
        return Placement(
            device=rank.backend.device.name,
            description=rank.backend.device.description,
            n_ctx=self.n_ctx,
            n_slots=rank.cache.n_slots,
            weights_bytes=rank.weights.n_bytes,
            mapped_bytes=rank.weights.mapped_bytes,
            cache_bytes=rank.cache.n_bytes,
            compute_bytes=rank.compute_bytes,
            replicated_bytes=replicated_bytes,
            layers=demand.layers,
            heads=demand.heads,
            n_head_kv=demand.n_head_kv,
        )

    def close(self) -> None:
        """Free the ranks and end their backends and threads."""
        for rank in self._ranks:
            rank.close()
        if self._group is not None:
            self._group.close()
        for backend in self._backends:
            backend.close()


def model_facts(model: Model) -> ModelFacts:
    """The model as the planner sees it."""
    found = model.weights
    is_tied = any(f.is_tied_head for f in found)
    return ModelFacts(model.hparams, [f.row for f in found], {f.row.name: f.tensor.type for f in found}, is_tied)


def check_arrangement(model: Model, options: LoadOptions) -> None:
    """Raises ConfigError where the model does not fit as the options say; reads no weight."""
    _arranged(model, options)


def _arranged(model: Model, options: LoadOptions) -> Arrangement:
    facts, cache, chosen = model_facts(model), cache_facts(options, model.hparams), options.devices()
    reserve = options.reserve_on(chosen)

    def machine() -> list[DeviceFacts]:
        return device_facts(serving_devices(), facts, cache, reserve)

    devices = device_facts(chosen, facts, cache, reserve)
    are_alike = len({(d.kind, d.description) for d in devices}) == 1
    if options.tp is not None and options.tensor_split is None and not are_alike:
        devices = measured(devices, main_type(facts), threads=options.threads)
    return arrange(facts, options, devices, machine)


def _parts(model: Model, arranged: Arrangement, i: int) -> list[Part]:
    """The parts of all weights that demand i holds."""
    deal, found = arranged.deal, model.weights
    if deal.cuts is not None:
        return tensor_parts(found, deal.cuts, deal.ranks[i])
    if deal.mode is Mode.LAYER:
        return layer_parts(found, range(*deal.demands[i].layers), model.hparams.n_layer)
    return whole_parts(found)


def _transport_notes(group: gg.Group, mode: Mode) -> list[str]:
    """The transports of sums by their size, why others are not used, and what was found about pairs of cards."""
    report = group.transports
    found = [str(pair) for pair in report.pairs if not pair.passed]
    if report.pairs:
        when = "found earlier" if all(pair.is_cached for pair in report.pairs) else "tested now"
        n_passed = sum(pair.passed for pair in report.pairs)
        found.append(f"peer copies deliver in {n_passed} of {len(report.pairs)} directions, {when}")
        found += [f"{row.name} is not used: {row.reason}" for row in report.rows if row.reason and not report.forced]
    tried = {name: when for name, when in report.trials.items() if when != "never"}
    found += [f"{name} was tried {when} in a process of its own" for name, when in tried.items()]
    if mode is Mode.TENSOR:
        found.append(f"sums over ranks go through: {', '.join(_spans(group))}")
        if group.reduce_dtype != "f32":
            found.append(f"prompts' sums of {gg.MIN_NARROW_ELEMENTS} numbers and more travel as {group.reduce_dtype}")
    if group.is_serial:
        found.append("ranks compute one at a time (PYGGML_PARALLEL_RANKS)")
    return found


def _unused_notes(options: LoadOptions) -> list[str]:
    """What was asked of sums and ranks that one device has not."""
    asked = {
        "transport": options.transport if options.transport != "auto" else None,
        "reduce-dtype": options.reduce_dtype if options.reduce_dtype != "f32" else None,
        "expert-split": options.expert_split if options.expert_split != "inside" else None,
    }
    return [f"{name} {value} is not used on one device" for name, value in asked.items() if value is not None]


def _graph_notes(backends: Sequence[gg.Backend], options: LoadOptions) -> list[str]:
    """Whether cards replay steps of few tokens as CUDA graphs."""
    if not any(backend.device.module == "cuda" for backend in backends):
        return []
    return [f"CUDA graphs are {'on' if options.cuda_graphs and gg.are_graphs_on() else 'off'}"]


def _spans(group: gg.Group) -> list[str]:
    spans = group.transports.spans
    return [f"{s.name} from {s.min_elements} elements on" if s.min_elements else s.name for s in spans]


def _whole_bytes(parts: Sequence[Part]) -> int:
    return sum(part.n_bytes for part in parts if part.slice is WHOLE)


def _check_types(backend: gg.Backend, parts: Sequence[Part]) -> None:
    """Raise DeviceError for a weight that the device cannot multiply by."""
    matrices = {(p.shape, p.kind, p.use) for p in parts if p.use in (Use.MUL_MAT, Use.MUL_MAT_ID)}
    for shape, kind, use in matrices:
        backend.weight_buffer_type(shape, kind, experts=use is Use.MUL_MAT_ID)
