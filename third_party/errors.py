"""Errors of the build.

BuildError
└── CompileError
"""

from __future__ import annotations


class BuildError(Exception):
    """A missing tool or a wrong option; the message is one line that says what to install or change."""

    exit_status = 2


class CompileError(BuildError):
    """CMake or the compiler failed; the message carries the end of its output and the path of the whole log."""

    exit_status = 1
