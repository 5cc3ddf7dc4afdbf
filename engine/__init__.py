"""GGUF model in, text out."""

from __future__ import annotations

from .errors import (
    ConfigError,
    EngineError,
    GenerationError,
    MissingTensor,
    ModelError,
    PlanError,
    PromptTooLong,
    RequestError,
    TemplateError,
    UnsupportedArchitecture,
    UnsupportedTokenizer,
    UnsupportedValue,
)
from .llm import LLM
from .model import Model
from .placement import Placement
from .request import Delta, FinishReason, Stats, TokenLogprob
from .sampling_params import SamplingParams
from .stream import Completion, Stream

__all__ = [
    "LLM",
    "Completion",
    "ConfigError",
    "Delta",
    "EngineError",
    "FinishReason",
    "GenerationError",
    "MissingTensor",
    "Model",
    "ModelError",
    "Placement",
    "PlanError",
    "PromptTooLong",
    "RequestError",
    "SamplingParams",
    "Stats",
    "Stream",
    "TemplateError",
    "TokenLogprob",
    "UnsupportedArchitecture",
    "UnsupportedTokenizer",
    "UnsupportedValue",
]
