"""The build cache: where it lies, how its folders are named, locked and tidied.

Everything is made in a temporary folder and renamed into place, so a folder that exists is complete.
One process works on a name at a time (`locked`); others wait. Nothing here knows what is built.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEEP_DAYS = 60
KEY_LENGTH = 16


def root() -> Path:
    """Return the cache folder: PYGGML_CACHE, else pyggml in the user's cache folder."""
    if named := os.environ.get("PYGGML_CACHE"):
        return Path(named).expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pyggml"


def key(*parts: object) -> str:
    """Return a short name for a list of JSON-able facts; equal facts give equal names on every machine."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


def digest(files: dict[str, bytes]) -> str:
    """Return a digest of files' names and contents, whatever their order."""
    total = hashlib.sha256()
    for name, content in sorted(files.items()):
        total.update(f"{name}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`; says so once when another process has it."""
    folder = root() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another pyggml build on this machine", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def filling(target: Path) -> Iterator[Path]:
    """Give an empty folder that becomes `target` when the block ends well, and vanishes when it does not."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def touch(folder: Path) -> None:
    """Note that `folder` was used now, so that `tidy` keeps it; a read-only cache is not an error."""
    try:
        os.utime(folder)
    except PermissionError:
        return


def tidy() -> None:
    """Remove builds and sources that nothing has used for KEEP_DAYS days, and what interrupted builds left."""
    oldest = time.time() - KEEP_DAYS * 86400
    for kind in ("build", "lib", "reference", "source"):
        for folder in (root() / kind).glob("*"):
            if folder.stat().st_mtime < oldest:
                shutil.rmtree(folder, ignore_errors=True)
