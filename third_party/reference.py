"""llama.cpp's own programs, compiled from the same archive: what tests and benchmarks compare against.

The folder `bin` of the result holds the programs, libllama and ggml, found through $ORIGIN. A C++ program of the tests
is compiled against that libllama into the same folder, and again only when its source changes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from . import archive, cache, cmake
from .errors import BuildError, CompileError
from .recipe import ROOT, TILES, Recipe

TARGETS = (
    "llama-server",
    "llama-bench",
    "llama-batched-bench",
    "llama-perplexity",
    "llama-tokenize",
    "llama-quantize",
    "llama-completion",
    "test-llama-archs",
)
PROGRAM = ROOT / "tests" / "reference" / "llama_logits.cpp"


def make(recipe: Recipe, jobs: int) -> Path:
    """Return the folder of the programs, compiling what the cache lacks (minutes the first time).

    Raises: BuildError when the source is ggml alone, CompileError.
    """
    folder = recipe.reference
    source = archive.unpacked(recipe.source) if recipe.source else archive.pinned()
    if source.llama is None:
        raise BuildError(f"--reference needs a whole llama.cpp tree, {recipe.source} holds ggml alone")
    with cache.locked(f"reference-{folder.parent.name}"):
        if not folder.exists():
            _compile(recipe, source.llama, folder, jobs)
        if PROGRAM.exists():
            _compile_program(recipe, source.llama, folder)
    cache.touch(folder.parent)
    return folder


def _compile(recipe: Recipe, llama: Path, folder: Path, jobs: int) -> None:
    work = cache.root() / "build" / f"reference-{folder.parent.name}"
    tree = work / "tree"
    flags = f'{os.environ.get("CXXFLAGS", "")} -include "{TILES}"'
    paths = {**recipe.path_options(work / "stubs"), "CMAKE_CXX_FLAGS": flags}
    cmake.configure(recipe.tools, llama, tree, {**recipe.reference_options(), **paths})
    cmake.build(recipe.tools, tree, list(TARGETS), jobs, "building llama.cpp's programs")
    with cache.filling(folder) as temporary:
        shutil.copytree(tree / "bin", temporary, symlinks=True, dirs_exist_ok=True)
    shutil.rmtree(work)


def _compile_program(recipe: Recipe, llama: Path, folder: Path) -> None:
    target, stamp = folder / PROGRAM.stem, folder / f"{PROGRAM.stem}.sha256"
    digest = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
    if target.exists() and stamp.exists() and stamp.read_text() == digest:
        return
    fresh = folder / f"{PROGRAM.stem}.{os.getpid()}"
    command = [recipe.tools.cxx, "-std=c++17", "-O2", str(PROGRAM), "-o", str(fresh)]
    command += [f"-I{llama / 'include'}", f"-I{llama / 'ggml' / 'include'}", f"-L{folder}"]
    command += ["-lllama", "-lggml", "-lggml-base", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(
            f"{done.stderr.strip()}\n{PROGRAM.relative_to(ROOT)} does not compile against libllama"
        )
    fresh.replace(target)
    stamp.write_text(digest)
