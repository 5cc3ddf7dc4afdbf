"""What a request may ask of sampling, checked once when it is made.

Defaults are llama.cpp's; a GGUF file may carry others (`general.sampling.*`), a request overrides both.
Knows no vocabulary: whether a token id of `logit_bias` exists is checked by the `Sampler`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from .constraint import Trigger
from .errors import RequestError, UnsupportedValue
from .grammar import schema_text

MAX_LOGPROBS = 20
MAX_GRAMMAR_CHARS = 1_000_000  # many tools make long ones; compiling takes seconds, in the caller's thread

_FILE_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repeat_penalty": "general.sampling.penalty_repeat",
    "repeat_last_n": "general.sampling.penalty_last_n",
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next tokens of one request are chosen and when it ends.

    temperature 0 takes the most likely token. top_k <= 0, top_p 1 and min_p 0 switch these filters off; top_p 0 keeps
    one token. repeat_penalty looks at the last repeat_last_n tokens of prompt and answer (0: none, -1: all);
    presence and frequency penalties count the answer only. seed None or -1 draws a fresh seed.
    loop_limit above 0 ends an answer whose last tokens are a sequence of at most 64 that came so many times in a row.
    logprobs is the number of most likely tokens reported with each token, 0 for the token's own only.
    At most one of json_schema (an object, or its JSON text), json_object, regex and grammar (llama.cpp's GBNF or
    llguidance's language) says what the answer's text must be; with `trigger` only from a place on.
    Raises: RequestError for a value that cannot be used.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False
    loop_limit: int = 0
    json_schema: Mapping[str, Any] | str | bool | None = None
    json_object: bool = False
    regex: str | None = None
    grammar: str | None = None
    trigger: Trigger | None = None

    def __post_init__(self) -> None:
        self._check_number("temperature", 0, 2)
        self._check_number("top_p", 0, 1)
        self._check_number("min_p", 0, 1)
        self._check_number("repeat_penalty", 0.01, 100)
        self._check_number("presence_penalty", -2, 2)
        self._check_number("frequency_penalty", -2, 2)
        self._check_integer("top_k", -(2**63), 2**63 - 1)
        self._check_integer("repeat_last_n", -1, 2**31 - 1)
        if self.seed is not None:
            self._check_integer("seed", -(2**63), 2**64 - 1)
        if self.max_tokens is not None:
            self._check_integer("max_tokens", 0, 2**63 - 1)
        self._check_integer("loop_limit", 0, 2**31 - 1)
        if self.loop_limit == 1:
            raise RequestError("loop_limit is 1; a sequence comes at least 2 times before it is repeated, 0 allows it")
        if self.logprobs is not None:
            self._check_integer("logprobs", 0, MAX_LOGPROBS)
        for name in ("ignore_eos", "json_object"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {_shown(getattr(self, name))}; true or false is needed")
        self._check_form()
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    @classmethod
    def with_file_defaults(cls, metadata: Mapping[str, Any], **chosen: Any) -> SamplingParams:
        """Params where what `chosen` leaves out, or gives as None, comes from the file's metadata, then the defaults.

        Raises: UnsupportedValue when the file's own values cannot be used, RequestError for a value of `chosen`.
        """
        from_file = {name: metadata[key] for name, key in _FILE_KEYS.items() if metadata.get(key) is not None}
        try:
            cls(**from_file)
        except RequestError as error:
            raise UnsupportedValue(f"the model file's sampling defaults (general.sampling.*): {error}") from error
        return cls(**from_file | {name: value for name, value in chosen.items() if value is not None})

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature < 1e-9

    def _check_form(self) -> None:
        """What is asked of the text; json_schema is JSON text from here on."""
        names = ("json_schema", "regex", "grammar")
        given = [name for name in names if getattr(self, name) is not None] + ["json_object"] * self.json_object
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)} are given; an answer can follow one of them only")
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise RequestError(f"{name} is {_shown(value)}; a text that is not empty is needed")
            if value is not None and len(value) > MAX_GRAMMAR_CHARS:
                raise RequestError(f"{name} has {len(value)} characters; at most {MAX_GRAMMAR_CHARS} are allowed")
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", schema_text(self.json_schema))
        if self.trigger is not None and (not given or not isinstance(self.trigger, Trigger)):
            raise RequestError("trigger needs a grammar, regex or schema that it begins")

    def _check_number(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
            raise RequestError(f"{name} is {_shown(value)}; a number from {low} to {high} is needed")
        object.__setattr__(self, name, float(value))

    def _check_integer(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
            raise RequestError(f"{name} is {_shown(value)}; a whole number from {low} to {high} is needed")
        object.__setattr__(self, name, int(value))


def _shown(value: object) -> str:
    """A value for a message: short even if a client sent thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 38 digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _checked_stop(stop: object) -> tuple[str, ...]:
    if stop is None:
        return ()
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"stop is {_shown(stop)}; a string or a list of strings is needed")
    if "" in texts:
        raise RequestError("stop holds an empty string, which every answer would match at once; leave it out")
    return tuple(texts)


def _checked_bias(logit_bias: object) -> dict[int, float]:
    if logit_bias is None:
        return {}
    if not isinstance(logit_bias, Mapping):
        raise RequestError(f"logit_bias is {_shown(logit_bias)}; an object of token ids and numbers is needed")
    checked: dict[int, float] = {}
    for key, bias in logit_bias.items():
        is_id = isinstance(key, Integral) or (isinstance(key, str) and key.isdecimal() and len(key) < 12)
        if not is_id:
            raise RequestError(f"logit_bias has the key {_shown(key)}; a token id is needed")
        is_number = isinstance(bias, Real) and not isinstance(bias, bool)
        if not is_number or not (-100 <= bias <= 100 or bias == -math.inf):
            raise RequestError(
                f"logit_bias of token {key} is {_shown(bias)}; a number from -100 to 100 is needed, or minus infinity"
            )
        checked[int(key)] = float(bias)
    return checked
