"""The text of `pyggml eval ppl` and `eval kl`: read, cut into windows, evaluated window by window."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import ConfigError
from ..llm import LLM
from ..load_options import DEFAULT_BATCH
from ..model import Model
from ..placement import MIN_CTX
from ..text_windows import TextWindows
from .loading import read_text
from .settings import Settings
from .terminal import counting_bar

DEFAULT_WINDOW = 512


def bos_of(model: Model) -> int | None:
    """The token that each window begins with in place of its own first one."""
    return model.tokenizer.bos_id if model.tokenizer.add_bos else None


def given_text(settings: Settings) -> str:
    """The text in --file; raises ConfigError naming the option."""
    return read_text(settings, "file", keeps_line_ends=True).removesuffix("\n")


def text_windows(settings: Settings, text: str, model: Model, *, n_ctx: int | None = None) -> TextWindows:
    """The windows of the text of --file, of n_ctx tokens or --ctx. Raises ConfigError naming the option at fault."""
    ids = model.tokenizer.encode(text, add_special=True)
    try:
        return TextWindows.cut(ids, n_ctx or settings["ctx"] or DEFAULT_WINDOW, bos_of(model), settings["windows"])
    except ConfigError as error:
        raise ConfigError(f"{settings.source('file')} {settings['file']}: {error}") from error


def check_chunk(settings: Settings) -> None:
    """Raise ConfigError for a --chunk that no step takes."""
    chunk, batch = settings["chunk"], settings["batch"] or DEFAULT_BATCH
    if chunk is not None and chunk > batch:
        raise ConfigError(f"{settings.source('chunk')} is {chunk}; with --batch {batch} that is the most")


def n_ctx_for(windows: TextWindows) -> int:
    """The context that an LLM needs to evaluate a window."""
    return max(MIN_CTX, windows.n_ctx)


def logits_of(llm: LLM, windows: TextWindows, window: int, chunk: int | None) -> np.ndarray:
    """Logits of the positions of a window that count, float32 [n_counted, n_vocab]."""
    rows = llm.score(windows.prompt(window), logits=True, first=windows.first, chunk=chunk)
    return rows[: windows.n_counted]


def each_window(settings: Settings, windows: TextWindows) -> Iterator[int]:
    """The numbers of the windows, with a bar on a terminal."""
    with counting_bar(not settings["json"], "evaluating", len(windows) * windows.n_ctx, "token") as advance:
        for window in range(len(windows)):
            yield window
            advance(windows.n_ctx)
