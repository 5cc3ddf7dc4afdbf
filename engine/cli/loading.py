"""Opening a model with the options of the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyggml as gg

from ..balance import parse_shares
from ..downloads.model_address import Address, model_address
from ..errors import ConfigError
from ..llm import LLM
from ..load_options import LoadOptions
from ..model import Model
from ..model_files import ADDRESSES, PACKAGED, find_model
from ..placement import MIN_CTX
from ..replica_options import replica_options
from ..reserve import read_reserve
from ..room import Room, room
from .settings import Settings
from .terminal import loading_bar, one_line, printable, say
from .unused_gpus import build_facts, unused_gpus

_CHOOSES = "plan"  # for which several devices need no mode
_ELSEWHERE = "pull"  # which fetches for any machine: its own devices need not be those of the options


def check_options(settings: Settings) -> None:
    """Refuse what makes no sense with any model, before an address is asked or a file is opened.

    Raises ConfigError for options and degrees, DeviceError for the name of a device.
    """
    if settings.takes("modes") and settings["modes"] == "all":
        return  # which modes those are, and whether they can be, is for bench_modes.modes()
    if settings.command == _ELSEWHERE:
        _check_mode(settings)
        return
    options = _chosen(settings)
    may_choose = settings.command == _CHOOSES
    try:
        for own in replica_options(options, _n_replicas(settings)):
            _check_devices(own, may_choose=may_choose and own is options)
    except ConfigError:
        warn_of_unused_gpus(settings)  # which may be what is missing
        raise
    if options.tp and options.tensor_split is not None:
        parse_shares(options.tensor_split, options.tp)


def _check_devices(options: LoadOptions, *, may_choose: bool) -> None:
    """Refuse devices that are not one a rank, and more numbers of --reserve than there are devices."""
    if options.n_ranks > 1 or (options.device is not None and not may_choose):
        options.reserve_on(options.devices())
    elif options.device is not None:
        options.reserve_on([gg.device(name) for name in options.device.split(",")])
    elif len(read_reserve(options.reserve)) > 1:  # to find the default device may open cards
        options.reserve_on((gg.discrete_gpus() if may_choose else []) or [gg.default_device()])


def is_elsewhere(settings: Settings) -> bool:
    """Whether the model's file may have to be fetched."""
    return settings["model"].lower().startswith(ADDRESSES) or "model" in settings.files


def open_model(settings: Settings) -> Model:
    """Open the model's file.

    Raises ConfigError naming where a name came from that is no model.
    """
    return Model(model_path(settings))


def model_path(settings: Settings) -> Path:
    """The path of the model's first file, fetched if it lies elsewhere; raises ConfigError as open_model()."""
    settings.fetch_files(model=True)
    try:
        return find_model(settings["model"], lambda: room_here(settings), offline=settings["offline"])
    except ConfigError as error:
        raise ConfigError(f"{settings.source('model')}: {error}") from error


def room_here(settings: Settings) -> Room:
    """The room on the devices that options name, as far as the command has such options."""
    if not settings.takes("device"):
        return room(LoadOptions(parallel=1))
    return room(_chosen(settings), _n_replicas(settings), in_child=settings.command == "serve")


def _chosen(settings: Settings) -> LoadOptions:
    """The options of loading that the command has; raises ConfigError for those that make no sense together."""
    _check_mode(settings)
    names = {field.name: field.name.replace("_", "-") for field in fields(LoadOptions)}
    chosen = {name: settings[long] for name, long in names.items() if settings.takes(long)}
    parallel = chosen.get("parallel", 1)  # bench has several
    chosen |= {"device": _device(settings), "parallel": max(parallel) if isinstance(parallel, list) else parallel}
    if chosen.get("ctx") is not None:
        chosen["ctx"] = max(MIN_CTX, chosen["ctx"])  # windows of a text may be shorter
    return LoadOptions(**chosen)


def _n_replicas(settings: Settings) -> int:
    return settings["dp"] if settings.takes("dp") else 1


def named_address(settings: Settings) -> Address:
    """The address that MODEL is. Raises ConfigError for a name of another kind."""
    name = settings["model"]
    if not name.lower().startswith(ADDRESSES):
        why = ""
        if name in PACKAGED:
            why = f"; {name} is a PyPI package, for pip to install and uninstall"
        raise ConfigError(
            f"{settings.source('model')}: {name!r} is no address; one is hf:owner/repo[:quant] or "
            f"http://host/path/model.gguf{why}"
        )
    try:
        return model_address(name)
    except ConfigError as error:
        raise ConfigError(f"{settings.source('model')}: {error}") from error


def _device(settings: Settings) -> str | None:
    """The devices that were chosen, by their own names; None where none was."""
    return None if settings["device"] is None else ",".join(device.name for device in named_devices(settings))


def named_devices(settings: Settings) -> list[gg.Device]:
    """The devices that --device names; raises DeviceError naming where a name came from."""
    gg.devices()  # what a variable like PYGGML_P2P says wrong is refused here, and not blamed on the option
    try:
        return [gg.device(name) for name in settings["device"].split(",")]
    except gg.DeviceError as error:
        raise gg.DeviceError(f"{settings.source('device')}: {error}") from error


def _check_mode(settings: Settings) -> None:
    """Raise ConfigError naming both sources of options that exclude each other."""
    if settings.is_given("tp") and settings.is_given("layer-split"):
        raise ConfigError(
            f"{settings.source('tp')} and {settings.source('layer-split')} exclude each other: --tp cuts inside "
            "layers, --layer-split deals whole layers; give one of them"
        )


def placing(settings: Settings) -> dict[str, Any]:
    """What the options say of where and how a model is to lie, by the names that LLM has for it.

    Raises ConfigError naming both sources of options that exclude each other.
    """
    _check_mode(settings)
    names = (
        "tp", "layer-split", "tensor-split", "expert-split", "batch", "threads", "cache-type-k", "cache-type-v", "fit",
        "reserve", "reduce-dtype",
    )  # fmt: skip
    return {"device": _device(settings), **{name.replace("-", "_"): settings[name] for name in names}}


def load_options(settings: Settings, *, ctx: int | None, parallel: int) -> LoadOptions:
    """The options of loading; raises ConfigError for those that make no sense together."""
    return LoadOptions(ctx=ctx, parallel=parallel, **placing(settings))


def open_llm(
    settings: Settings,
    model: Model,
    *,
    ctx: int | None,
    parallel: int = 1,
    prefix_cache: bool = False,
    chat_template: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> LLM:
    """Load the weights, with a bar on a terminal; `where` takes the place of the options of that name."""
    placed = placing(settings) | {name: settings[name.replace("_", "-")] for name in ("transport", "cuda_graphs")}
    placed |= dict(where or {})
    with loading_bar(not settings["json"]) as progress:
        return LLM(
            model, ctx=ctx, parallel=parallel, prefix_cache=prefix_cache, chat_template=chat_template,
            progress=progress, **placed,
        )  # fmt: skip


def start_lines(llm: LLM) -> list[str]:
    """What lies where and why, for people: of several ranks the mode and a table."""
    software = sorted({p.device for p in llm.plan if gg.device(p.device).kind == "software"})
    slow = [f"{name} is the processor, through a driver that compiles for a minute at first" for name in software]
    return [printable(line) for line in (*llm.notes, *str(llm.plan).splitlines(), *slow)]


def warn_of_unused_gpus(settings: Settings) -> None:
    """Say loudly that a GPU stays unused, unless a device was chosen."""
    if not settings.is_given("device"):
        for line in unused_gpus(gg.devices(), gg.module_problems(), build_facts()):
            say(f"pyggml {settings.command}: {one_line(line)}")


def read_text(settings: Settings, name: str, *, keeps_line_ends: bool = False) -> str:
    """The content of the text file that an option names.

    Raises ConfigError naming the option's source.
    """
    try:
        with open(Path(settings[name]).expanduser(), encoding="utf-8", newline="" if keeps_line_ends else None) as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{settings.source(name)} {settings[name]}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{settings.source(name)} {settings[name]}: the file is not UTF-8") from error


def writable(settings: Settings, name: str) -> Path:
    """The file to write that an option names, held against what can be known of it before the work.

    Raises ConfigError naming the option's source.
    """
    path = Path(settings[name]).expanduser()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{settings.source(name)} {path}: no file can be written there")
    return path


def limit_of(settings: Settings, model: Model) -> int:
    """The most tokens that a request may have: --ctx, else the model's own context."""
    asked: int | None = settings["ctx"]
    return asked or model.hparams.n_ctx_train
