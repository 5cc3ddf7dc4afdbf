"""Our libraries: ggml's, pyggml-native and the cffi extension, compiled by one CMake run into a folder of the cache.

Our own files are copied into the build tree first, so that the tree depends on no checkout and a second checkout with
the same files compiles nothing. The folder holds the libraries, build.json and the licences of what they contain.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from . import archive, cache, cmake
from .errors import BuildError, CompileError
from .recipe import ROOT, Recipe

EXTENSION = "_ggml.abi3.so"
VULKAN = "libggml-vulkan.so"  # an earlier build may have left it in the tree


def make(recipe: Recipe, jobs: int) -> Path:
    """Return the folder of the libraries, compiling what the cache lacks.

    Raises: BuildError, CompileError.
    """
    lib = recipe.lib
    if not lib.exists():
        with cache.locked(f"build-{recipe.tree.name}"):
            if not lib.exists():
                _compile(recipe, lib, jobs)
                cache.tidy()
    cache.touch(lib)
    return lib


def place(lib: Path, package: Path) -> list[Path]:
    """Put the libraries into the package folder: the extension beside the modules, the rest into _lib.

    Hard links where the file system allows them, else copies; running processes keep the files they have opened.
    """
    placed = []
    libraries = package / "_lib"
    if _is_placed(lib, libraries) and (package / EXTENSION).exists():
        return [package / EXTENSION, *(p for p in libraries.rglob("*") if p.is_file())]
    with cache.filling(libraries) as temporary:
        for path in sorted(p for p in lib.rglob("*") if p.is_file() and p.name != EXTENSION):
            target = temporary / path.relative_to(lib)
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(path, target)
            placed.append(libraries / path.relative_to(lib))
    fresh = package / f".{EXTENSION}"
    fresh.unlink(missing_ok=True)
    _link(lib / EXTENSION, fresh)
    fresh.replace(package / EXTENSION)
    return [package / EXTENSION, *placed]


def _is_placed(lib: Path, libraries: Path) -> bool:
    try:
        return (libraries / "build.json").read_bytes() == (lib / "build.json").read_bytes()
    except FileNotFoundError:
        return False


def _link(source: Path, target: Path) -> None:
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


def _compile(recipe: Recipe, lib: Path, jobs: int) -> None:
    source = archive.unpacked(recipe.source) if recipe.source else archive.pinned()
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").exists():
        raise BuildError(f"Python.h is missing from {headers}: sudo apt install python3-dev")
    staged, tree = recipe.tree / "src", recipe.tree / "tree"
    _stage(recipe.own_files, staged)
    options = {
        **recipe.module_options(),
        **recipe.path_options(recipe.tree / "stubs"),
        "PYGGML_GGML": str(source.ggml),
        "PYGGML_PYTHON_INCLUDE": str(headers),
        "PYGGML_EXTENSION": str(staged / "_ggml.c"),
    }
    try:
        cmake.configure(recipe.tools, staged / "third_party", tree, options)
        spoken = cmake.build(
            recipe.tools, tree, [], jobs, f"building ggml ({', '.join(recipe.choice.names)})"
        )
    except CompileError as error:
        raise CompileError(str(error).replace(f"{staged}/", "")) from None
    sys.stderr.write(_own_warnings(spoken, staged))
    with cache.filling(lib) as temporary:
        for path in (tree / "lib").glob("*.so"):
            if recipe.choice.vulkan or path.name != VULKAN:
                shutil.copy2(path, temporary / path.name)
        if recipe.is_portable:
            _bundle_openmp(recipe, temporary)
        _write_licences(source, temporary / "licences")
        (temporary / "build.json").write_text(json.dumps(recipe.facts(), indent=1) + "\n")


def _stage(own_files: dict[str, bytes], staged: Path) -> None:
    wanted = {staged / name: content for name, content in own_files.items()}
    for path, content in wanted.items():
        _write(path, content)
    extension = staged / "_ggml.c"
    for stale in [path for path in staged.rglob("*") if path.is_file() and path not in {*wanted, extension}]:
        stale.unlink()
    _write(extension, _extension_source(staged / "pyggml" / "_build_ffi.py"))


def _extension_source(script: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "_ggml.c"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                runpy.run_path(str(script))["emit"](target)
        except ModuleNotFoundError as error:
            if error.name != "cffi":
                raise
            raise BuildError(f"cffi is missing: {sys.executable} -m pip install cffi") from error
        return target.read_bytes()


def _write(path: Path, content: bytes) -> None:
    # An unchanged file keeps its time, so that Ninja does not compile it again.
    if not path.exists() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _own_warnings(spoken: str, staged: Path) -> str:
    blocks = re.split(r"(?m)^(?=\S+:\d+:\d+: )", spoken)
    return "".join(block for block in blocks if block.startswith(str(staged))).replace(f"{staged}/", "")


def _bundle_openmp(recipe: Recipe, folder: Path) -> None:
    # libgomp comes with a compiler, which a machine that installs a wheel need not have.
    answer = subprocess.run(
        [recipe.tools.cc, "-print-file-name=libgomp.so.1"], check=False, capture_output=True, text=True
    ).stdout
    if Path(answer.strip()).is_file():
        shutil.copy2(Path(answer.strip()).resolve(), folder / "libgomp.so.1")


def _write_licences(source: archive.Source, folder: Path) -> None:
    folder.mkdir()
    shutil.copy2(ROOT / "third_party" / "NOTICES", folder / "NOTICES")
    for base in (source.llama, source.ggml):
        if base and (base / "LICENSE").exists():
            shutil.copy2(base / "LICENSE", folder / "LICENSE.ggml")
    sgemm = source.ggml / "src" / "ggml-cpu" / "llamafile" / "sgemm.cpp"
    header = re.match(r"(?://.*\n)+", sgemm.read_text())
    if header:
        (folder / "LICENSE.llamafile").write_text(re.sub(r"(?m)^// ?", "", header[0]))
