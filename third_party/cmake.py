"""Runs CMake and Ninja in a build tree, with progress, a log file and a readable failure."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from pathlib import Path

from .errors import CompileError
from .progress import Progress
from .toolchain import Toolchain

TAIL_LINES = 40


def configure(tools: Toolchain, source: Path, tree: Path, options: dict[str, str]) -> None:
    """Run CMake for `source` in `tree`.

    Raises: CompileError with the end of CMake's output.
    """
    tree.mkdir(parents=True, exist_ok=True)
    command = [tools.cmake, "-S", str(source), "-B", str(tree), "-G", "Ninja", "-Wno-dev"]
    command += [f"-D{name}={value}" for name, value in sorted(options.items())]
    done = subprocess.run(
        command, check=False, env=_environment(tools), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    log = tree / "configure.log"
    log.write_text(f"{command}\n{done.stdout}")
    if done.returncode:
        raise CompileError(_failure("CMake could not configure the build", done.stdout.splitlines(), log))


def build(tools: Toolchain, tree: Path, targets: list[str], jobs: int, title: str) -> str:
    """Run Ninja for `targets` (all when empty) and return what it printed besides its steps.

    Raises: CompileError with the end of the failing step's output.
    """
    log = tree / "build.log"
    spoken: list[str] = []
    recent: deque[str] = deque(maxlen=TAIL_LINES)
    command = [tools.ninja, "-C", str(tree), "-j", str(jobs), *targets]
    with (
        Progress(title) as progress,
        open(log, "w") as out,
        subprocess.Popen(
            command, env=_environment(tools), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                out.write(line)
                recent.append(line.rstrip())
                if not progress.step(line):
                    spoken.append(line)
        except BaseException:
            process.terminate()
            raise
        progress.has_failed = process.wait() != 0
    if process.returncode:
        raise CompileError(_failure("the compiler failed", list(recent), log))
    return "".join(spoken)


def _environment(tools: Toolchain) -> dict[str, str]:
    # ggml-vulkan configures a project of its own, whose CMake must find a Ninja that lies in a virtual environment.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), os.path.dirname(tools.ninja)])
    # Both projects ask git for a commit, and would find that of whatever repository the cache happens to lie in.
    return {**os.environ, "PATH": path, "GIT_DIR": os.devnull, "NINJA_STATUS": "[%f/%t] "}


def _failure(what: str, lines: list[str], log: Path) -> str:
    # Ninja prints the whole command below each FAILED line.
    shown = [
        line for above, line in zip(["", *lines], lines, strict=False) if not above.startswith("FAILED: ")
    ]
    return "\n".join([*shown[-TAIL_LINES:], f"{what}; the whole output is in {log}"])
