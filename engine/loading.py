"""From options to ranks: which devices, what lies where, and then the weights.

All refusals come before the first weight is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyggml as gg

from .balance import DeviceFacts, check_n_ranks, default_shares, layer_split, parse_shares
from .cuts import TensorPlan, tp_cuts
from .errors import ConfigError
from .kv_cache import KVCache, cache_bytes
from .model import Model
from .placement import Placement, choose_ctx
from .rank import Rank, Ranks
from .weights import Part, Progress, Weights, layer_parts, tensor_parts, whole_parts


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to lie on devices; the names are the command line's.

    `device` is a name or a list with commas; `tp` cuts every layer over that many ranks, `layer_split`
    puts whole layers on that many devices; neither means one device. `tensor_split` are the ranks'
    shares ("3,1"; with layer_split the numbers of layers). `ctx` None means the largest context that
    fits. Raises ConfigError for values that make no sense.
    """

    device: str | None = None
    tp: int | None = None
    layer_split: int | None = None
    tensor_split: str | None = None
    expert_split: str = "inside"
    ctx: int | None = None
    parallel: int = 4
    batch: int = 512
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"

    def __post_init__(self) -> None:
        for name in ("parallel", "batch", "threads", "tp", "layer_split"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name.replace('_', '-')} = {value}; at least 1 is needed")
        if self.tp is not None and self.layer_split is not None:
            raise ConfigError(
                f"--tp {self.tp} and --layer-split {self.layer_split} exclude each other: the one cuts inside layers, "
                "the other deals whole layers; give one of them"
            )
        if self.tensor_split is not None and self.n_ranks == 1:
            raise ConfigError(
                f"--tensor-split {self.tensor_split} needs --tp or --layer-split with 2 or more devices"
            )

    @property
    def n_ranks(self) -> int:
        """The number of ranks asked for."""
        return self.tp or self.layer_split or 1

    def devices(self) -> list[gg.Device]:
        """One device a rank.

        Raises ConfigError where the list and the number of ranks do not match, DeviceError for a name.
        """
        n, option = self.n_ranks, "tp" if self.tp else "layer-split"
        check_n_ranks(option, n)
        if self.device is not None:
            listed = [gg.device(name) for name in self.device.split(",")]
            if len(listed) != n:
                hint = (
                    f"--tp {len(listed)} or --layer-split {len(listed)}"
                    if len(listed) > 1
                    else f"--device {','.join([self.device] * n)}"
                )
                raise ConfigError(
                    f"--device {self.device} lists {len(listed)} devices for {n} ranks; use {hint}"
                )
            return listed
        if n == 1:
            return [gg.default_device()]
        cards = gg.discrete_gpus()
        if len(cards) < n:
            names = ", ".join(d.name for d in cards) or "none"
            raise ConfigError(
                f"--{option} {n} needs {n} GPUs and this machine shows {len(cards)} ({names}); list devices, which may "
                f"come more than once, as in --device {','.join(['cpu'] * n)}"
            )
        return cards[:n]


class LoadedModel:
    """A model's ranks and backends. `n_ctx` is the context of one request."""

    def __init__(self, model: Model, options: LoadOptions, progress: Progress | None = None) -> None:
        self._ranks: list[Rank] = []
        self._backends: list[gg.Backend] = []
        self._group: gg.Group | None = None
        self._options = options
        hp = model.hparams
        shares = _deal(model, options, options.devices())
        devices = [share.device for share in shares]
        self.n_ctx = _context(model, options, shares)
        total = sum(part.n_bytes for share in shares for part in share.parts)
        done = 0
        try:
            if len(devices) == 1:
                self._backends = [gg.Backend(devices[0], threads=options.threads)]
            else:
                self._group = gg.Group(devices, threads=options.threads)
                self._backends = self._group.backends
            for backend, share in zip(self._backends, shares):
                report = _shifted(progress, done, total)
                weights = Weights(backend, share.parts, report)
                done += sum(part.n_bytes for part in share.parts)
                cache = KVCache(
                    backend, hp, n_slots=options.parallel, n_ctx=self.n_ctx, layers=share.layers,
                    n_head_kv=share.n_head_kv, type_k=options.cache_type_k, type_v=options.cache_type_v,
                )  # fmt: skip
                self._ranks.append(
                    Rank(backend, weights, cache, gg.Allocator(backend), share.layers, share.first_expert)
                )
        except BaseException:
            self.close()
            raise
        self.ranks = Ranks(
            tuple(self._ranks), self._group, options.layer_split is not None and len(devices) > 1
        )

    @property
    def placements(self) -> tuple[Placement, ...]:
        """What lies where, in bytes, a rank each."""
        return tuple(
            Placement(
                device=rank.backend.device.name,
                description=rank.backend.device.description,
                n_ctx=self.n_ctx,
                n_slots=rank.cache.n_slots,
                weights_bytes=rank.weights.n_bytes,
                mapped_bytes=rank.weights.mapped_bytes,
                cache_bytes=rank.cache.n_bytes,
                compute_bytes=rank.allocator.n_bytes,
            )
            for rank in self._ranks
        )

    def close(self) -> None:
        """Free the ranks and end their backends and threads."""
        for rank in self._ranks:
            rank.close()
        if self._group is not None:
            self._group.close()
        for backend in self._backends:
            backend.close()


@dataclass(frozen=True)
class Share:
    """What one rank is to hold."""

    device: gg.Device
    parts: list[Part]
    layers: range
    n_head_kv: int
    first_expert: int = 0


def _deal(model: Model, options: LoadOptions, devices: Sequence[gg.Device]) -> list[Share]:
    """What each device holds; devices that are given nothing take no part."""
    hp, found = model.hparams, model.weights
    every = range(hp.n_layer)
    if len(devices) == 1:
        return [Share(devices[0], whole_parts(found), every, hp.n_head_kv)]
    if options.tp is not None:
        plan = _tensor_plan(model, options, devices)
        return [
            Share(
                device,
                tensor_parts(found, plan, r),
                every,
                plan.ranks[r].n_head_kv,
                (plan.ranks[r].experts or (0,))[0],
            )
            for r, device in enumerate(devices)
            if plan.ranks[r].share > 0
        ]
    stages = zip(devices, (range(a, b) for a, b in _layer_spans(model, options, devices)))
    return [
        Share(device, layer_parts(found, layers, hp.n_layer), layers, hp.n_head_kv)
        for device, layers in stages
        if layers
    ]


def _tensor_plan(model: Model, options: LoadOptions, devices: Sequence[gg.Device]) -> TensorPlan:
    types = {f.row.name: f.tensor.type for f in model.weights}
    if options.tensor_split is not None:
        values = parse_shares(options.tensor_split, len(devices))
    else:
        values = default_shares([_facts(d) for d in devices]).values
    rows = [f.row for f in model.weights]
    return tp_cuts(model.hparams, rows, types, values, expert_split=options.expert_split)


def _layer_spans(
    model: Model, options: LoadOptions, devices: Sequence[gg.Device]
) -> Sequence[tuple[int, int]]:
    hp = model.hparams
    counts = None
    if options.tensor_split is not None:
        try:
            counts = [int(part) for part in options.tensor_split.replace("/", ",").split(",")]
        except ValueError:
            raise ConfigError(
                f"tensor-split = {options.tensor_split!r}; with --layer-split it is whole numbers of layers"
            ) from None
    n_ctx = options.ctx or hp.n_ctx_train
    kv_bytes = (
        cache_bytes(hp, options.parallel, n_ctx, options.cache_type_k, options.cache_type_v) // hp.n_layer
    )
    sizes = [0] * hp.n_layer
    first = last = 0
    for f in model.weights:
        if f.row.name.startswith("blk."):
            sizes[int(f.row.name.split(".")[1])] += f.tensor.n_bytes
        elif f.row.name.startswith("token_embd"):
            first += f.tensor.n_bytes
        else:
            last += f.tensor.n_bytes
    free = [d.memory_free for d in devices]
    return layer_split(sizes, first, last, kv_bytes, free, counts)


def _context(model: Model, options: LoadOptions, shares: Sequence[Share]) -> int:
    """The context that the tightest rank allows; ranks on one device share its memory."""
    fits = []
    for share in shares:
        if not share.n_head_kv:
            continue
        here = [s for s in shares if s.device == share.device]
        weights = 0 if share.device.kind == "cpu" else sum(p.n_bytes for s in here for p in s.parts)
        hp = replace(model.hparams, n_layer=len(share.layers), n_head_kv=share.n_head_kv)
        fits.append(
            choose_ctx(
                hp,
                asked=options.ctx,
                n_slots=options.parallel,
                type_k=options.cache_type_k,
                type_v=options.cache_type_v,
                weights_bytes=weights // len(here),
                free_bytes=share.device.memory_free // len(here),
            )  # fmt: skip
        )
    return min(fits)


def _facts(device: gg.Device) -> DeviceFacts:
    return DeviceFacts(device.name, device.kind, device.description, device.memory_free)


def _shifted(progress: Progress | None, start: int, total: int) -> Progress | None:
    """Progress of one rank told as progress of all."""
    if progress is None:
        return None
    return lambda done, _: progress(start + done, total)
