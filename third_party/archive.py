"""The source of ggml: the pinned archive in the cache, or an unpacked tree that the user names.

pip fetches the archive from wherever the user's pip is set up to look; its SHA-256 is checked by pip before the archive
is opened and again here. Only vendor/llama.cpp is unpacked, without the stubs of a git repository that the archive
carries: they make llama.cpp's CMake re-run for ever.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from . import cache
from .errors import BuildError
from .progress import Progress

LOCK = Path(__file__).parent / "ggml.lock"
VENDORED = ("vendor", "llama.cpp")


@dataclass(frozen=True)
class Lock:
    """The pinned distribution."""

    name: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Source:
    """An unpacked tree: llama.cpp's folder (None where only ggml is there), ggml's, and a name for its content."""

    llama: Path | None
    ggml: Path
    identity: str


def read_lock(path: Path = LOCK) -> Lock:
    """Read the lock file.

    Raises: BuildError when it does not pin exactly one distribution by SHA-256.
    """
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    match = (
        re.fullmatch(r"([\w.-]+)==([\w.]+) --hash=sha256:([0-9a-f]{64})", lines[0])
        if len(lines) == 1
        else None
    )
    if match is None:
        raise BuildError(f"{path}: expected one line 'name==version --hash=sha256:...'")
    return Lock(*match.groups())


def pinned_folder(lock: Lock) -> Path:
    """Return the folder of the cache that holds, or will hold, the pinned archive's llama.cpp."""
    return cache.root() / "source" / f"{lock.name}-{lock.version}-{lock.sha256[:8]}" / "llama.cpp"


def pinned() -> Source:
    """Return the pinned source, fetching and unpacking it when the cache lacks it.

    Raises: BuildError without pip or network, or when the archive's bytes are not the pinned ones.
    """
    lock = read_lock()
    llama = pinned_folder(lock)
    if not llama.exists():
        with cache.locked(f"source-{lock.sha256[:8]}"):
            if not llama.exists():
                _fetch(lock, llama.parent)
    cache.touch(llama.parent)
    return Source(llama, llama / "ggml", f"sha256:{lock.sha256}")


def unpacked(path: Path) -> Source:
    """Return the source below `path`: an unpacked archive, a llama.cpp checkout or a ggml folder.

    Raises: BuildError when `path` is none of them.
    """
    path = path.expanduser().resolve()
    for llama in (path.joinpath(*VENDORED), path):
        if (llama / "ggml" / "CMakeLists.txt").exists():
            return Source(llama, llama / "ggml", _identity(llama / "ggml"))
    if (path / "CMakeLists.txt").exists() and (path / "include" / "ggml.h").exists():
        return Source(None, path, _identity(path))
    raise BuildError(
        f"--source {path}: no ggml there; name the unpacked {read_lock().name} archive, a llama.cpp folder "
        "or a ggml folder"
    )


def unpack(archive: Path, sha256: str, target: Path) -> None:
    """Check the archive's SHA-256 and write its vendor/llama.cpp to `target`.

    Raises: BuildError when the bytes are not the pinned ones.
    """
    with open(archive, "rb") as handle:
        digest = hashlib.sha256()
        while block := handle.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise BuildError(
            f"{archive.name}: SHA-256 is {digest.hexdigest()}, third_party/ggml.lock pins {sha256}"
        )
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            inner = parts[3:]
            if parts[1:3] != VENDORED or not member.isfile() or {"..", ".git"} & set(inner):
                continue
            content = tar.extractfile(member)
            assert content is not None
            path = target.joinpath(*inner)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "wb") as out:
                shutil.copyfileobj(content, out)


def _fetch(lock: Lock, target: Path) -> None:
    title = f"fetching ggml's source with pip ({lock.name} {lock.version}, 77 MB, once)"
    with Progress(title), tempfile.TemporaryDirectory() as folder:
        command, env = _pip()
        command += [
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            lock.name,
            "--require-hashes",
            "-r",
            str(LOCK),
        ]
        done = subprocess.run([*command, "-d", folder], env=env, check=False, capture_output=True, text=True)
        archives = list(Path(folder).glob("*.tar.gz"))
        if done.returncode or len(archives) != 1:
            reason = (done.stderr.strip().splitlines() or ["no archive came"])[-1]
            raise BuildError(
                f"pip could not fetch {lock.name} {lock.version}: {reason}; "
                "without network use --source PATH with the unpacked archive"
            )
        with cache.filling(target) as temporary:
            unpack(archives[0], lock.sha256, temporary / "llama.cpp")


def _pip() -> tuple[list[str], dict[str, str]]:
    # A PEP 517 build environment hides this interpreter's own pip through PYTHONPATH.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], env=env, check=False, capture_output=True).returncode == 0:
        return own, env
    if importlib.util.find_spec("ensurepip") is not None:
        import ensurepip

        for wheel in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
            return own, {**env, "PYTHONPATH": str(wheel)}
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found], env
    raise BuildError(
        "pip is missing: sudo apt install python3-pip (or use --source PATH with the unpacked archive)"
    )


def _identity(ggml: Path) -> str:
    files = [path for path in ggml.rglob("*") if path.is_file() and ".git" not in path.parts]
    return "tree:" + cache.digest({path.relative_to(ggml).as_posix(): path.read_bytes() for path in files})
