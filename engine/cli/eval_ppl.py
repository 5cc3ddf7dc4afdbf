"""`pyggml eval ppl`: how surprised a model is by a text, and its logits in llama.cpp's format."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..divergence import perplexity, surprises
from ..logprob_file import LogprobWriter
from .eval_text import check_chunk, each_window, given_text, logits_of, n_ctx_for, text_windows
from .loading import open_llm, open_model, warn_of_unused_gpus, writable
from .settings import Settings
from .table import render
from .units import shown_bytes, shown_rate, shown_seconds


def eval_ppl(settings: Settings) -> int:
    """Evaluate the text; with --save write the file."""
    target = writable(settings, "save") if settings.is_given("save") else None
    check_chunk(settings)
    text = given_text(settings)
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(contextlib.closing(open_model(settings)))
        windows = text_windows(settings, text, model)
        warn_of_unused_gpus(settings)
        name = model.name
        llm = stack.enter_context(open_llm(settings, model, ctx=n_ctx_for(windows)))
        writer = None
        if target is not None:
            writer = stack.enter_context(LogprobWriter(target, windows, model.hparams.n_vocab))
        start, found = time.perf_counter(), []
        for window in each_window(settings, windows):
            logits = logits_of(llm, windows, window, settings["chunk"])
            found.append(surprises(logits, windows.following(window)))
            if writer is not None:
                writer.write(logits)
        seconds = time.perf_counter() - start
    nll = np.concatenate(found)
    document: dict[str, Any] = {
        "model": name,
        "n_windows": len(windows),
        "n_ctx": windows.n_ctx,
        "n_positions": len(nll),
        "perplexity": perplexity(nll),
        "window_perplexities": [perplexity(part)["value"] for part in found],
        "seconds": seconds,
        "tok_per_s": len(windows) * windows.n_ctx / seconds,
        "saved": None if target is None else str(target),
    }
    print(json.dumps(document, ensure_ascii=False, allow_nan=False) if settings["json"] else _shown(document, target))
    return 0


def _shown(document: dict[str, Any], target: Path | None) -> str:
    found = document["perplexity"]
    rows = [
        ("perplexity", f"{found['value']:.4f} +- {found['error']:.4f}"),
        ("positions", f"{document['n_positions']} in {document['n_windows']} windows of {document['n_ctx']} tokens"),
        ("time", f"{shown_seconds(document['seconds'])}, {shown_rate(document['tok_per_s'])} tokens/s"),
    ]
    if target is not None:
        rows.append(("log-probabilities", f"{target}, {shown_bytes(target.stat().st_size)}"))
    return render(rows)
