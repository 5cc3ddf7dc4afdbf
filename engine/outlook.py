"""Every way to put a model on these devices: whether it fits, the largest context, predicted times.

Arithmetic over the devices' facts, and measured speeds where they are wanted. Reads no weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyggml as gg

from .arrangement import Deal, cache_facts, deal_model
from .balance import DeviceFacts
from .demand import ModelFacts
from .errors import ConfigError
from .fit import choose_group_ctx, fit, largest_ctx, placements
from .load_options import LoadOptions
from .measuring import link_times, main_type, measured
from .placement import MIN_CTX, Placements
from .prediction import LinkTimes, Mode, Prediction, Work, predict
from .reserve import NO_RESERVE, Reserve


@dataclass(frozen=True)
class Outlook:
    """One way. `obstacle` says why the model cannot be dealt so; then there is no deal.

    `n_ctx` is the context that loading would take, None where the model does not fit; `largest_ctx`
    the most that fits, 0 where nothing does. `fault` says why nothing could be measured.
    """

    options: LoadOptions
    devices: Sequence[DeviceFacts]
    obstacle: str = ""
    deal: Deal | None = None
    n_ctx: int | None = None
    largest_ctx: int = 0
    prediction: Prediction | None = None
    links: LinkTimes | None = None
    fault: str = ""
    placements: Placements | None = None

    @property
    def is_fitting(self) -> bool:
        """Whether it can be loaded."""
        return self.n_ctx is not None


def ways(
    options: LoadOptions, one: str, several: Sequence[str], reserve: Reserve = NO_RESERVE, *, are_default: bool
) -> Iterator[LoadOptions]:
    """One device, then tensor parallel and layer split over the first 2, 4, 8 ... and over all of several.

    `are_default`: several devices are found without their names.
    """
    yield options.changed({"device": one} | reserve.setting([one]))
    counts = sorted({n for n in (2, 4, 8, 16) if n < len(several)} | {len(several)} - {0, 1})
    for option in ("tp", "layer-split"):
        for n in counts:
            names = several[:n]
            where = {} if are_default else {"device": ",".join(names)}
            yield options.changed({option: n} | where | reserve.setting(names))


def outlook(
    model: ModelFacts,
    options: LoadOptions,
    devices: Sequence[DeviceFacts],
    *,
    n_prompt: int,
    is_measured: bool,
) -> Outlook:
    """What to expect of one way."""
    mode = Mode.TENSOR if options.tp else Mode.LAYER if options.layer_split else Mode.ONE
    fault, links = "", LinkTimes()
    if is_measured:
        try:
            kind, is_at_once = main_type(model), mode is Mode.TENSOR
            devices = measured(devices, kind, threads=options.threads, is_at_once=is_at_once)
            links = link_times(tuple(d.name for d in devices), threads=options.threads)
        except gg.PyggmlError as error:
            fault = str(error)
    cache = cache_facts(options, model.hp)
    try:
        dealt = deal_model(model, options, devices)
    except ConfigError as error:
        return Outlook(options, devices, str(error))
    most = largest_ctx(model, dealt.demands, cache)
    is_fitting = fit(model, dealt.demands, cache, options.ctx or MIN_CTX).is_fitting
    n_ctx = choose_group_ctx(model, dealt.demands, cache, options.ctx) if is_fitting else None
    work = Work(n_prompt, min(options.planned_batch, n_prompt), n_prompt, options.reduce_dtype)
    return Outlook(
        options,
        devices,
        deal=dealt,
        n_ctx=n_ctx,
        largest_ctx=most,
        prediction=predict(model.hp, mode, dealt.demands, cache, work, links),
        links=links,
        fault=fault,
        placements=placements(model, dealt.demands, cache, n_ctx or options.ctx or MIN_CTX),
    )


def fastest(found: Sequence[Outlook]) -> Outlook | None:
    """The one to take: the fastest for a token of those that fit, the first of them where none is predicted."""
    fitting = [o for o in found if o.is_fitting]
    known = {o.prediction.token_s: o for o in fitting if o.prediction and o.prediction.token_s is not None}
    if known:
        return known[min(known)]
    return fitting[0] if fitting else None

