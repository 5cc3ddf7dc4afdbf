"""Kernels' own source as programs for a processor: threads are fibers, CUDA's words are those of `emulated_cuda`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CUDA = TESTS.parent / "pyggml" / "native" / "cuda"
COMPILER = shutil.which("c++") or shutil.which("g++")


def compile_emulated(
    name: str,
    patterns: tuple[str, ...],
    folder: Path,
    *,
    without: tuple[str, str] | None = None,
    capability: int = 80,
) -> Path:
    """The program of `emulated_cuda/NAME.cpp`, from copies of the kernels beside stand-ins for CUDA's words.

    `without` is a file of them and what its copy has in comments only; `capability` that of the card.
    """
    if COMPILER is None:
        pytest.skip("no C++ compiler: sudo apt install g++")
    for path in (
        *(path for pattern in patterns for path in CUDA.glob(pattern)),
        *(TESTS / "emulated_cuda").iterdir(),
    ):
        shutil.copy(path, folder)
    if without is not None:
        kernel, text = folder / without[0], (folder / without[0]).read_text()
        assert text.count(without[1]) == 1
        kernel.write_text(text.replace(without[1], f"// {without[1]}"))
    arch = f"-DEMULATED_ARCH={10 * capability}"
    command = [COMPILER, "-std=c++20", "-O1", "-w", "-I.", arch, f"{name}.cpp", "-o", name]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / name


def run_emulated(program: Path, case: tuple[object, ...]) -> list[float]:
    """The numbers that it prints."""
    done = subprocess.run(
        [program, *map(str, case)], check=False, capture_output=True, text=True, timeout=100
    )
    return [float(word) for word in done.stdout.split()]
