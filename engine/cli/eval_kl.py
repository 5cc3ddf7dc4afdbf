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
from ..logprob_file import LogprobFile
from ..model import Model
from ..text_windows import TextWindows
from .eval_base import Base, FileBase, RunBase, base_file, other_settings
from .eval_report import report
from .eval_text import check_chunk, each_window, given_text, logits_of, n_ctx_for, text_windows
from .loading import open_llm, open_model, warn_of_unused_gpus, writable
from .settings import Settings

_COLUMNS = ("window", "position", "token", "kl", "logprob", "base_logprob", "is_same_top", "is_identical")


def eval_kl(settings: Settings) -> int:
    """Evaluate the base's tokens, compare, and print the figures."""
    table = writable(settings, "positions") if settings.is_given("positions") else None
    check_chunk(settings)
    _check_given(settings)
    files = {option: base_file(settings, option) for option in ("base", "floor") if settings.is_given(option)}
    other = other_settings(settings) if settings.is_given("base-run") else None
    text = given_text(settings) if settings.is_given("file") else None
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(contextlib.closing(open_model(settings)))
        floor: FileBase | None = None
        base: Base
        if other is not None:
            assert text is not None, "two runs need a text"
            base = run = RunBase(other, text_windows(settings, text, model), stack)
            run.check_same(settings, text, model)
        else:
            base = file = FileBase(settings, "base", files["base"], model)
            if text is not None:
                file.check_same(text_windows(settings, text, model, n_ctx=file.windows.n_ctx), settings["file"])
            if "floor" in files:
                floor = _floor(settings, files["floor"], model, file)
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


def _check_given(settings: Settings) -> None:
    """Raise ConfigError for options that do not go together."""
    if settings.is_given("base") == settings.is_given("base-run"):
        raise ConfigError("give either --base or --base-run")
    if settings.is_given("base-run") and not settings.is_given("file"):
        raise ConfigError(f"{settings.source('base-run')} needs a text to evaluate: give --file")
    if settings.is_given("base-run") and settings.is_given("floor"):
        raise ConfigError(f"{settings.source('floor')} is a file beside another one; it needs --base")


def _floor(settings: Settings, file: LogprobFile, model: Model, base: FileBase) -> FileBase:
    """The file whose distance from the base is noise, held against the base."""
    floor = FileBase(settings, "floor", file, model)
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
