"""The compilers and CMake of this machine, and what the compiler says of its CPU.

A missing tool is a BuildError that names the package to install. CMake and Ninja may also come from PyPI into the
environment that runs the build.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .errors import BuildError

CMAKE_OLDEST = (3, 18)


@dataclass(frozen=True)
class Toolchain:
    """What compiles: commands, version lines, and the macros of the compiler for this very CPU."""

    cc: str
    cxx: str
    cmake: str
    ninja: str
    compiler: str
    cmake_version: str
    macros: frozenset[str]


def find() -> Toolchain:
    """Return this machine's tools.

    Raises: BuildError for the first tool that is missing or too old.
    """
    cc = _tool(os.environ.get("CC", "cc"), "C compiler", "sudo apt install build-essential")
    cxx = _tool(os.environ.get("CXX", "c++"), "C++ compiler", "sudo apt install build-essential")
    cmake = _tool("cmake", "CMake", "pip install cmake ninja (or sudo apt install cmake ninja-build)")
    ninja = _tool("ninja", "Ninja", "pip install ninja (or sudo apt install ninja-build)")
    version = _first_line([cmake, "--version"])
    numbers = re.search(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < CMAKE_OLDEST:
        raise BuildError(
            f"CMake {'.'.join(map(str, CMAKE_OLDEST))} or newer is needed, {cmake} is {version!r}: pip install cmake"
        )
    compiler = f"{_first_line([cc, '--version'])}; {_first_line([cxx, '--version'])}"
    return Toolchain(cc, cxx, cmake, ninja, compiler, version, _native_macros(cc))


def which(name: str) -> str | None:
    """Return the command's path, looked up on PATH and beside the running Python."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def output(command: list[str]) -> str:
    """Return what a command printed on both streams; "" when it cannot be run or fails."""
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr if done.returncode == 0 else ""


def _tool(command: str, what: str, remedy: str) -> str:
    words = shlex.split(command)
    found = which(words[0]) if len(words) == 1 else None
    if found is None:
        raise BuildError(f"{what} ({command}) is missing: {remedy}")
    return found


def _first_line(command: list[str]) -> str:
    return (output(command).splitlines() or [""])[0]


def _native_macros(cc: str) -> frozenset[str]:
    native = "-march=native" if platform.machine() in ("x86_64", "AMD64", "i686") else "-mcpu=native"
    text = output([cc, native, "-dM", "-E", "-x", "c", "/dev/null"])
    return frozenset(re.findall(r"^#define (\w+) ", text, re.MULTILINE))
