"""Which modes `pyggml bench --modes all` compares, and which of them won."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pyggml as gg

from ..errors import ConfigError
from ..reserve import reserve_on
from .loading import placing
from .settings import Settings
from .units import shown_rate

Where = dict[str, Any]  # options of LLM


def modes(settings: Settings) -> list[Where]:
    """One device, tensor parallel over 2 and more of the devices, layer split over all.

    Raises ConfigError where there is nothing to compare, or a mode was given as well.
    """
    given = next((n for n in ("tp", "layer-split", "tensor-split") if settings.is_given(n)), None)
    if given is not None:
        raise ConfigError(
            f"{settings.source('modes')} all chooses the modes itself; leave {settings.source(given)} away"
        )
    placed = placing(settings)
    device = placed["device"]
    names = [d.name for d in gg.discrete_gpus()] if device is None else device.split(",")
    if len(names) < 2:
        raise ConfigError(
            f"{settings.source('modes')} all compares two or more devices, and there is "
            f"{', '.join(names) or 'no GPU'}; list them, as in --device {','.join([*names, *names] or ['cpu', 'cpu'])}"
        )
    reserve = reserve_on(placed["reserve"], names)
    apart = {} if placed["reduce_dtype"] == "f32" else {"reduce_dtype": "f32"}  # these sum nothing
    apart |= {} if settings["transport"] == "auto" else {"transport": "auto"}

    def where(n: int, **mode: int) -> Where:
        return {"device": ",".join(names[:n]), **mode, **reserve.setting(names[:n]), **({} if "tp" in mode else apart)}

    several = range(2, len(names) + 1)
    return [where(1), *(where(n, tp=n) for n in several), where(len(names), layer_split=len(names))]


def options_text(where: Where) -> str:
    """A mode as options of the command line."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in where.items())


def winners(model: str, measured: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each use the fastest mode, as the command that takes it."""
    uses = {
        "chat": ("decode", "parallel", min),
        "long prompts": ("prefill", "n_prompt", max),
        "many at once": ("decode", "parallel", max),
    }
    found = {}
    for use, (test, key, pick) in uses.items():
        sizes = [run[key] for mode in measured for run in mode.get(test, ())]
        if not sizes or (use == "many at once" and max(sizes) == min(sizes)):
            continue
        size = pick(sizes)
        speeds = {
            mode["options"]: run["tok_per_s"]
            for mode in measured
            for run in mode.get(test, ())
            if run[key] == size
        }
        best = max(speeds, key=lambda options: speeds[options])
        found[use] = {
            "options": best,
            "command": f"pyggml run {shlex.quote(model)} {best}",
            "test": f"{test} {size}" if test == "prefill" else f"{test} x {size}",
            "tok_per_s": speeds[best],
        }
    return found


def winner_lines(found: dict[str, dict[str, Any]]) -> list[str]:
    """The winners for people."""
    return [
        f"{use} ({win['test']}): {win['command']}  ({shown_rate(win['tok_per_s'])} tokens/s)"
        for use, win in found.items()
    ]
