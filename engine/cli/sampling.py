"""Sampling options of the command line, checked before a model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ConfigError, RequestError
from ..grammar import check_form
from ..sampling_params import SamplingParams
from .options import SAMPLING
from .settings import Settings


def chosen_sampling(settings: Settings) -> dict[str, Any]:
    """The fields of SamplingParams that were given.

    Raises ConfigError naming where an impossible value came from.
    """
    chosen: dict[str, Any] = {}
    for name in SAMPLING:
        if not settings.is_given(name):
            continue
        field = name.replace("-", "_")
        value: Any = dict(settings[name]) if name == "logit-bias" else settings[name]
        if name == "grammar":
            value = _grammar_in(value, settings.source(name))
        try:
            check_form(SamplingParams(**{field: value}))
        except RequestError as error:
            raise ConfigError(f"{settings.source(name)}: {error}") from error
        chosen[field] = value
    return chosen


def _grammar_in(path: str, source: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source}: {path} cannot be read: {reason}") from error


def check_bias(settings: Settings, n_vocab: int) -> None:
    """Raise ConfigError for a bias on a token that the model lacks."""
    for token, _ in settings["logit-bias"]:
        if not 0 <= token < n_vocab:
            raise ConfigError(
                f"{settings.source('logit-bias')}: token id {token} is outside of the vocabulary of {n_vocab}"
            )
