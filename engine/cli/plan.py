"""`pyggml plan`: what would be placed where, what else would fit, and how fast each way is predicted to be."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import pyggml as gg

from ..arrangement import arrange, cache_facts
from ..cuts import valid_degrees
from ..device_facts import device_facts, serving_devices
from ..errors import ConfigError
from ..fit import placements
from ..load_options import LoadOptions
from ..loading import model_facts
from ..model import Model
from ..outlook import fastest, outlook, ways
from ..replica_options import replica_options
from ..replica_plan import plan_replicas, replica_devices
from .loading import load_options, open_model, warn_of_unused_gpus
from .plan_report import PlanReport
from .settings import Settings
from .terminal import say


def plan(settings: Settings) -> int:
    """Print what would be placed where; no weight is read."""
    options = load_options(settings, ctx=settings["ctx"], parallel=settings["parallel"])
    replicas = replica_options(options, settings["dp"])
    with contextlib.closing(open_model(settings)) as model:
        warn_of_unused_gpus(settings)
        of_one = len(replicas) == 1
        report = _report(settings, model, options) if of_one else _replicas_report(settings, model, replicas)
        if settings["json"]:
            print(json.dumps(report.to_dict(), ensure_ascii=False))
        else:
            print("\n".join(report.lines()))
    if report.refusal:
        raise ConfigError(report.refusal)
    return 0


def _report(settings: Settings, model: Model, options: LoadOptions) -> PlanReport:
    facts = model_facts(model)
    cache = cache_facts(options, facts.hp)
    one, several = _considered(options)
    has_mode = options.n_ranks > 1
    reserve = options.reserve_on(several or [one])
    if settings["measure"] and not settings["json"]:
        say(f"measuring {', '.join(d.name for d in several or [one])} ...")
    ways_here = ways(options, one.name, [d.name for d in several], reserve, are_default=options.device is None)
    candidates = [options] if has_mode else []
    candidates += [way for way in ways_here if not has_mode or way.where != options.where]
    outlooks = [
        outlook(
            facts, way, device_facts(way.devices(), facts, cache, reserve), n_prompt=settings["n-prompt"],
            is_measured=settings["measure"],
        )
        for way in candidates
    ]  # fmt: skip
    report = PlanReport(
        name=model.name,
        path=str(model.path),
        facts=facts,
        n_prompt=settings["n-prompt"],
        outlooks=outlooks,
        degrees=valid_degrees(facts.hp, facts.rows, facts.types, expert_split=options.expert_split),
        devices=list(dict.fromkeys([one, *several])),
    )
    chosen = outlooks[0] if has_mode else fastest(outlooks) or outlooks[0]
    try:
        arranged = arrange(
            facts, chosen.options, chosen.devices, lambda: device_facts(serving_devices(), facts, cache, reserve)
        )
    except ConfigError as error:
        report.refusal = str(error)
        return report
    taken = cache_facts(arranged.options, facts.hp)
    report.options = arranged.options.text
    report.placed = placements(facts, arranged.deal.demands, taken, arranged.n_ctx)
    report.notes = (arranged.deal.title, *arranged.notes)
    return report


def _replicas_report(settings: Settings, model: Model, replicas: Sequence[LoadOptions]) -> PlanReport:
    """Every replica as it would lie and do by itself, with the memory that is its own."""
    facts = model_facts(model)
    report = PlanReport(
        name=model.name,
        path=str(model.path),
        facts=facts,
        n_prompt=settings["n-prompt"],
        outlooks=[
            outlook(facts, own, devices, n_prompt=settings["n-prompt"], is_measured=settings["measure"])
            for own, devices in zip(replicas, replica_devices(model, replicas))
        ],
        degrees=valid_degrees(facts.hp, facts.rows, facts.types, expert_split=replicas[0].expert_split),
        devices=list(dict.fromkeys(device for own in replicas for device in own.devices())),
        n_replicas=len(replicas),
    )
    try:
        report.replicas = plan_replicas(model, replicas)
    except ConfigError as error:
        report.refusal = str(error)
    return report


def _considered(options: LoadOptions) -> tuple[gg.Device, list[gg.Device]]:
    """The device to use alone, and those to use together."""
    if options.n_ranks > 1:
        devices = options.devices()
        return devices[0], devices
    if options.device is not None:
        devices = [gg.device(name) for name in options.device.split(",")]
        return devices[0], devices
    return gg.default_device(), gg.discrete_gpus()
