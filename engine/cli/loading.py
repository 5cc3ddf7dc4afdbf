"""Opening a model with the options of the command line."""

from __future__ import annotations

from pathlib import Path

import pyggml as gg

from ..errors import ConfigError
from ..llm import LLM
from ..model import Model
from .settings import Settings
from .terminal import loading_bar, one_line, say
from .unused_gpus import build_facts, unused_gpus


def open_model(settings: Settings) -> Model:
    """Open the model's file.

    Raises ConfigError naming where a name came from that is no model.
    """
    try:
        return Model(settings["model"])
    except ConfigError as error:
        raise ConfigError(f"{settings.source('model')}: {error}") from error


def _device(settings: Settings) -> str | None:
    """The devices that were chosen, by their own names; None where none was."""
    if settings["device"] is None:
        return None
    try:
        return ",".join(gg.device(name).name for name in settings["device"].split(","))
    except gg.DeviceError as error:
        raise gg.DeviceError(f"{settings.source('device')}: {error}") from error


def open_llm(
    settings: Settings,
    model: Model,
    *,
    ctx: int | None,
    parallel: int = 1,
    prefix_cache: bool = False,
    chat_template: str | None = None,
) -> LLM:
    """Load the weights, with a bar on a terminal."""
    with loading_bar(not settings["json"]) as progress:
        return LLM(
            model,
            device=_device(settings),
            tp=settings["tp"],
            layer_split=settings["layer-split"],
            tensor_split=settings["tensor-split"],
            expert_split=settings["expert-split"],
            ctx=ctx,
            parallel=parallel,
            batch=settings["batch"],
            threads=settings["threads"],
            cache_type_k=settings["cache-type-k"],
            cache_type_v=settings["cache-type-v"],
            prefix_cache=prefix_cache,
            chat_template=chat_template,
            progress=progress,
        )


def warn_of_unused_gpus(settings: Settings) -> None:
    """Say loudly that a GPU stays unused, unless a device was chosen."""
    if not settings.is_given("device"):
        for line in unused_gpus(gg.devices(), gg.module_problems(), build_facts()):
            say(f"pyggml {settings.command}: {one_line(line)}")


def read_text(settings: Settings, name: str) -> str:
    """The content of the text file that an option names.

    Raises ConfigError naming the option's source.
    """
    try:
        return Path(settings[name]).expanduser().read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{settings.source(name)} {settings[name]}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{settings.source(name)} {settings[name]}: the file is not UTF-8") from error


def limit_of(settings: Settings, model: Model) -> int:
    """The most tokens that a request may have: --ctx, else the model's own context."""
    asked: int | None = settings["ctx"]
    return asked or model.hparams.n_ctx_train
