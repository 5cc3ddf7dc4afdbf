"""The exceptions of pyggml.

PyggmlError
├── GgmlError             anything that concerns ggml objects
│   ├── BuildError        a library or backend module is missing or does not fit
│   ├── ShapeError        shapes or types that an operation cannot take
│   ├── AllocationError   a buffer could not be had
│   ├── ComputeError      a graph could not be run
│   ├── DeviceError       no such device, or it cannot do what was asked
│   └── ClosedError       use of something that was closed
└── GGUFError             a GGUF file that is wrong; has `path` and `field`
"""

from __future__ import annotations

import os


class PyggmlError(Exception):
    """Base of every error that this distribution raises on purpose."""


class GgmlError(PyggmlError):
    """Base of the errors that concern ggml objects."""


class BuildError(GgmlError):
    """A native library or a backend module is missing or does not fit."""


class ShapeError(GgmlError, ValueError):
    """Shapes or types that the operation cannot take."""


class AllocationError(GgmlError, MemoryError):
    """A device or host buffer could not be allocated."""


class ComputeError(GgmlError, RuntimeError):
    """A graph could not be computed."""


class DeviceError(GgmlError, ValueError):
    """The device does not exist or cannot do what was asked."""


class ClosedError(GgmlError, RuntimeError):
    """The object was closed before this use."""


class GGUFError(PyggmlError, ValueError):
    """A GGUF file is damaged, hostile or incomplete.

    `path` is the file, `field` the key, tensor or header field at fault.
    """

    def __init__(self, path: str | os.PathLike[str], field: str, problem: str) -> None:
        self.path = os.fspath(path)
        self.field = field
        self.problem = problem
        super().__init__(f"{self.path}: {field}: {problem}")
