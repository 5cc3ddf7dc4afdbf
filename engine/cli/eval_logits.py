"""`pyggml eval logits`: the logits of given tokens, as a .npy file."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, PromptTooLong
from ..model import Model
from ..placement import MIN_CTX
from .eval_text import check_chunk
from .loading import limit_of, open_llm, open_model, warn_of_unused_gpus, writable
from .settings import Settings
from .table import render
from .units import shown_rate, shown_seconds


def eval_logits(settings: Settings) -> int:
    """Evaluate the tokens and write the file."""
    target = writable(settings, "out")
    check_chunk(settings)
    _check_source(settings)
    with contextlib.closing(open_model(settings)) as model:
        ids = _ids(settings, model)
        warn_of_unused_gpus(settings)
        with open_llm(settings, model, ctx=settings["ctx"] or max(MIN_CTX, len(ids))) as llm:
            start = time.perf_counter()
            logits = llm.score(ids, logits=True, chunk=settings["chunk"])
            seconds = time.perf_counter() - start
    _write(target, logits)
    summary = _summary(target, logits, seconds)
    if settings["json"]:
        print(json.dumps(summary, ensure_ascii=False, allow_nan=False))
    else:
        print(_shown(summary))
    return 0


def _check_source(settings: Settings) -> None:
    """Refuse what can be seen of the tokens without a model."""
    has_tokens = settings.is_given("tokens")
    if has_tokens == settings.is_given("text"):
        raise ConfigError("give either --tokens or --text")
    if has_tokens and settings["ctx"]:
        _check_length(settings.source("tokens"), settings["tokens"], settings["ctx"])


def _check_length(source: str, ids: Sequence[int], limit: int) -> None:
    if len(ids) > limit:
        raise PromptTooLong(f"{source}: {len(ids)} tokens do not fit a context of {limit}")


def _ids(settings: Settings, model: Model) -> list[int]:
    has_tokens = settings.is_given("tokens")
    ids: list[int] = settings["tokens"] if has_tokens else model.tokenizer.encode(settings["text"])
    source = settings.source("tokens" if has_tokens else "text")
    n_vocab = model.hparams.n_vocab
    wrong = next((id for id in ids if id >= n_vocab), None)
    if wrong is not None:
        raise ConfigError(f"{source}: token id {wrong} is outside of the vocabulary of {n_vocab}")
    if not ids:
        raise ConfigError(f"{source}: there is no token to evaluate")
    _check_length(source, ids, limit_of(settings, model))
    return ids


def _write(path: Path, logits: np.ndarray) -> None:
    """Write the whole file or none."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            np.save(file, logits)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _summary(path: Path, logits: np.ndarray, seconds: float) -> dict[str, Any]:
    finite = logits[np.isfinite(logits)]
    return {
        "out": str(path),
        "n_tokens": logits.shape[0],
        "n_vocab": logits.shape[1],
        "seconds": seconds,
        "tok_per_s": logits.shape[0] / seconds,
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "n_not_finite": int(logits.size - finite.size),
        "last_argmax": int(np.nan_to_num(logits[-1], nan=-np.inf).argmax()),
    }


def _shown(summary: dict[str, Any]) -> str:
    rows = [
        ("file", summary["out"]),
        ("logits", f"float32 [{summary['n_tokens']}, {summary['n_vocab']}]"),
        ("range", f"{summary['min']} to {summary['max']}, {summary['n_not_finite']} not finite"),
        ("likeliest next token", summary["last_argmax"]),
        ("time", f"{shown_seconds(summary['seconds'])}, {shown_rate(summary['tok_per_s'])} tokens/s"),
    ]
    return render(rows)
