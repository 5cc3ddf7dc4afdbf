"""What `pyggml eval kl` holds a run against: a file of log-probabilities, or another run."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack, closing
from typing import Protocol

import numpy as np

from ..errors import ConfigError
from ..llm import LLM
from ..logprob_file import CodedRows, LogprobFile
from ..model import Model
from ..text_windows import TextWindows
from .commands import COMMANDS
from .eval_text import bos_of, logits_of, n_ctx_for, text_windows
from .loading import check_options, open_llm, open_model
from .options import options_of
from .parser import make_parser, parse
from .settings import Settings, settle

# What is evaluated and told; the other run has no say in it.
_OF_BOTH = ("file", "ctx", "windows", "base", "base-run", "floor", "positions", "json")


class Base(Protocol):
    """Gives the rows that a run is held against. `windows` are the tokens at which both are evaluated."""

    windows: TextWindows

    def rows(self, window: int) -> np.ndarray | CodedRows:
        """Logits or log-probabilities of a window's positions that count."""


def base_file(settings: Settings, option: str) -> LogprobFile:
    """The file that an option names. Raises ConfigError where it is none, or has other windows than were asked for."""
    try:
        file = LogprobFile(settings[option])
    except ConfigError as error:
        raise ConfigError(f"{settings.source(option)}: {error}") from error
    n_windows, most = len(file.tokens), settings["windows"]
    if most is not None and most > n_windows:
        raise ConfigError(f"{settings.source('windows')} is {most}; {file.path} has {n_windows}")
    if settings["ctx"] not in (None, file.n_ctx):
        raise ConfigError(
            f"{settings.source('ctx')} is {settings['ctx']}; the windows of {file.path} have {file.n_ctx} tokens"
        )
    return file


class FileBase:
    """A file, or the noise floor's. Raises ConfigError where it is of another vocabulary or text."""

    def __init__(self, settings: Settings, option: str, file: LogprobFile, model: Model) -> None:
        self._file = file
        n_vocab = model.hparams.n_vocab
        if self._file.n_vocab != n_vocab:
            raise ConfigError(
                f"{settings.source(option)}: {self._file.path} is of a vocabulary of {self._file.n_vocab} tokens, "
                f"{model.path} has {n_vocab}"
            )
        self.windows = TextWindows(self._file.tokens[: settings["windows"]], bos_of(model))

    def check_same(self, windows: TextWindows, whose: str) -> None:
        """Raise ConfigError where these are other tokens."""
        n = min(len(windows), len(self.windows))
        here, there = (TextWindows(w.tokens[:n], None) for w in (self.windows, windows))
        difference = here.difference(there)
        if difference is not None:
            raise ConfigError(f"{self._file.path} and {whose} are of different tokens: {difference}")

    def rows(self, window: int) -> CodedRows:
        """The file's rows."""
        return self._file.rows(window)


class RunBase:
    """Another run, with its own settings: those of --base-run."""

    def __init__(self, settings: Settings, windows: TextWindows, stack: ExitStack) -> None:
        self.windows = windows
        self._settings = settings
        self._model = stack.enter_context(closing(open_model(self._settings)))
        self._llm: LLM | None = None
        self._stack = stack

    def check_same(self, settings: Settings, text: str, model: Model) -> None:
        """Raise ConfigError where the other model has another vocabulary or cuts the text into other tokens."""
        source, n_vocab = settings.source("base-run"), self._model.hparams.n_vocab
        if n_vocab != model.hparams.n_vocab:
            raise ConfigError(
                f"{source}: {self._model.path} has a vocabulary of {n_vocab} tokens, {model.path} one of "
                f"{model.hparams.n_vocab}"
            )
        difference = self.windows.difference(text_windows(settings, text, self._model))
        if difference is not None:
            raise ConfigError(f"{source}: {self._model.path} cuts the text into other tokens: {difference}")

    def open(self) -> None:
        """Load the weights."""
        self._llm = self._stack.enter_context(open_llm(self._settings, self._model, ctx=n_ctx_for(self.windows)))

    def rows(self, window: int) -> np.ndarray:
        """The other run's logits."""
        assert self._llm is not None, "the weights are loaded"
        return logits_of(self._llm, self.windows, window, self._settings["chunk"])


def other_settings(settings: Settings) -> Settings:
    """The settings of --base-run, a command line of its own, with this run's model where it names none.

    Raises ConfigError for what makes no sense there.
    """
    source = settings.source("base-run")
    try:
        words = shlex.split(settings["base-run"])
        name, options = settings.command, options_of(settings.command)
        given = parse(make_parser(name, COMMANDS[name], options), name, words)
        other = settle(name, options, given, os.environ)
    except ValueError as error:  # an unclosed quote; ConfigError is one too
        raise ConfigError(f"{source}: {error}") from error
    if wrong := next((name for name in _OF_BOTH if name in given), None):
        raise ConfigError(f"{source}: --{wrong} is for both runs; give it outside of {source}")
    try:
        check_options(other)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error
    if "model" not in given:
        other.take("model", settings["model"], settings.source("model"))
    return other
