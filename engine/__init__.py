"""GGUF model in, text out."""

from __future__ import annotations

from .chat_format import ChatFormat
from .chat_prompt import ChatPrompt
from .errors import (
    ConfigError,
    DeviceLost,
    DownloadError,
    EngineError,
    GenerationError,
    MissingTensor,
    ModelError,
    PlanError,
    PromptTooLong,
    QueueFull,
    RequestError,
    TemplateError,
    UnsupportedArchitecture,
    UnsupportedTokenizer,
    UnsupportedValue,
)
from .formats.tools import ToolCall, ToolCallDelta
from .llm import LLM
from .model import Model
from .placement import Placement
from .request import Delta, FinishReason, Stats, TokenLogprob
from .sampling_params import SamplingParams
from .status import EngineStatus, PrefixStatus, SlotStatus
from .stream import Completion, Stream
from .submission import Submission

__all__ = [
    "LLM",
    "ChatFormat",
    "ChatPrompt",
    "Completion",
    "ConfigError",
    "Delta",
    "DeviceLost",
    "DownloadError",
    "EngineError",
    "EngineStatus",
    "FinishReason",
    "GenerationError",
    "MissingTensor",
    "Model",
    "ModelError",
    "Placement",
    "PlanError",
    "PrefixStatus",
    "PromptTooLong",
    "QueueFull",
    "RequestError",
    "SamplingParams",
    "SlotStatus",
    "Stats",
    "Stream",
    "Submission",
    "TemplateError",
    "TokenLogprob",
    "ToolCall",
    "ToolCallDelta",
    "UnsupportedArchitecture",
    "UnsupportedTokenizer",
    "UnsupportedValue",
]
