"""The exceptions of the engine.

PyggmlError
└── EngineError
    ├── ConfigError                options that contradict each other or the machine
    ├── ModelError                 the file is sound but cannot be served
    │   ├── UnsupportedArchitecture
    │   ├── UnsupportedTokenizer
    │   ├── UnsupportedValue       a metadata value that the family does not know
    │   └── MissingTensor
    ├── DownloadError              a model could not be fetched, or is not what was promised
    ├── DeviceLost                 a device is gone for this process; nothing will run any more
    ├── PlanError                  no graph can be planned for a shape on a device
    ├── RequestError               this request is wrong; others are not concerned
    │   ├── PromptTooLong
    │   ├── QueueFull              as many requests wait as may; try again later
    │   └── TemplateError          the chat template refused the messages or is broken
    └── GenerationError            a running request failed (non-finite logits, lost device)
"""

from __future__ import annotations

from pyggml import PyggmlError


class EngineError(PyggmlError):
    """Base of the engine's errors."""


class ConfigError(EngineError, ValueError):
    """Options that contradict each other or the machine."""


class ModelError(EngineError, ValueError):
    """The file is a sound GGUF but this model cannot be served."""


class UnsupportedArchitecture(ModelError):
    """No model family of that name."""


class UnsupportedTokenizer(ModelError):
    """The tokenizer's kind or pre-tokenizer is not known."""


class UnsupportedValue(ModelError):
    """A metadata value that the family does not know."""


class MissingTensor(ModelError):
    """A weight that the family needs is not in the file."""


class DownloadError(EngineError):
    """A model could not be fetched, or what came is not what was promised."""


class PlanError(EngineError):
    """No graph can be planned for this shape on this device."""


class DeviceLost(EngineError):
    """A device failed and could not be used again; nothing will run in this process any more."""


class RequestError(EngineError, ValueError):
    """The request is wrong; other requests are not concerned."""


class PromptTooLong(RequestError):
    """The prompt does not fit the context."""


class QueueFull(RequestError):
    """As many requests are running and waiting as may; one sent later will do."""


class TemplateError(RequestError):
    """The chat template refused the messages or is itself broken."""


class GenerationError(EngineError, RuntimeError):
    """A running request could not be finished."""
