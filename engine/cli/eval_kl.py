"""`pyggml eval kl`: how far a run's predictions are from a base's, both forced along the same tokens."""

from __future__ import annotations

import contextlib
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..divergence import Positions, compare, figures
from ..errors import ConfigError
from ..model import Model
from ..text_windows import TextWindows
from .eval_base import Base, FileBase, RunBase
from .eval_report import report
from .eval_text import check_chunk, each_window, logits_of, n_ctx_for, text_windows
from .loading import open_llm, open_model, warn_of_unused_gpus, writable
from .settings import Settings

_COLUMNS = ("window", "position", "token", "kl", "logprob", "base_logprob", "is_same_top", "is_identical")


def eval_kl(settings: Settings) -> int:
    """Evaluate the base's tokens, compare, and print the figures."""
    table = writable(settings, "positions") if settings.is_given("positions") else None
    check_chunk(settings)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(contextlib.closing(open_model(settings)))
        base = _base(settings, model, stack)
        floor = _floor(settings, model, base)
        warn_of_unused_gpus(settings)
        if isinstance(base, RunBase):
            base.open()
        document: dict[str, Any] = {"model": model.name, "path": str(model.path), "base": _name_of_base(settings)}
        llm = stack.enter_context(open_llm(settings, model, ctx=n_ctx_for(base.windows)))
        windows, start = base.windows, time.perf_counter()
        ours, floors = [], []
        for window in each_window(settings, windows):
            right, following = base.rows(window), windows.following(window)
            ours.append(compare(right, logits_of(llm, windows, window, settings["chunk"]), following))
            if floor is not None:
                floors.append(compare(right, floor.rows(window), following))
        document |= {"n_windows": len(windows), "n_ctx": windows.n_ctx, "seconds": time.perf_counter() - start}
    of_file = isinstance(base, FileBase)
    document["run"] = figures(Positions.joined(ours), of_file=of_file)
    document["floor"] = figures(Positions.joined(floors), of_file=True) if floors else None
    if table is not None:
        _write(table, windows, ours)
    print(json.dumps(document, ensure_ascii=False, allow_nan=False) if settings["json"] else report(document))
    return 0


def _base(settings: Settings, model: Model, stack: contextlib.ExitStack) -> FileBase | RunBase:
    """What to compare with, held against the model and the text."""
    if settings.is_given("base") == settings.is_given("base-run"):
        raise ConfigError("give either --base or --base-run")
    if settings.is_given("base"):
        base = FileBase(settings, "base", model)
        if settings.is_given("file"):
            base.check_same(text_windows(settings, model, n_ctx=base.windows.n_ctx), settings["file"])
        return base
    if not settings.is_given("file"):
        raise ConfigError(f"{settings.source('base-run')} needs a text to evaluate: give --file")
    run = RunBase(settings, text_windows(settings, model), stack)
    run.check_same(settings, model)
    return run


def _floor(settings: Settings, model: Model, base: Base) -> FileBase | None:
    """The file whose distance from the base is noise, held against the base."""
    if not settings.is_given("floor"):
        return None
    if not isinstance(base, FileBase):
        raise ConfigError(f"{settings.source('floor')} is a file beside another one; it needs --base")
    floor = FileBase(settings, "floor", model)
    base.check_same(floor.windows, settings["floor"])
    if len(floor.windows) < len(base.windows):
        raise ConfigError(
            f"{settings.source('floor')} has {len(floor.windows)} windows, {settings['base']} {len(base.windows)}; "
            f"give --windows {len(floor.windows)}"
        )
    return floor


def _name_of_base(settings: Settings) -> str:
    return settings["base"] if settings.is_given("base") else f"run {settings['base-run']}".rstrip()


def _write(path: Path, windows: TextWindows, parts: list[Positions]) -> None:
    """A line a position, as comma-separated values."""
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_COLUMNS)
        for window, part in enumerate(parts):
            flags = (part.is_same_top.astype(int), part.is_identical.astype(int))
            columns = (part.kl, -part.nll, -part.nll_base, *flags)
            places = np.arange(windows.first, windows.first + windows.n_counted)
            for row in zip(places, windows.following(window), *columns):
                writer.writerow([window, *(value.item() for value in row)])
