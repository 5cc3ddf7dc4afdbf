"""One file over HTTP onto the disk: what came stays when the connection breaks, and nothing is kept unchecked.

What is not whole yet lies beside its place under the name `….incomplete`, locked while a process writes it. Retries,
redirects and ranges are huggingface_hub's; sums are made while the bytes come.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from ..errors import DownloadError
from .refusals import explained

Progress = Callable[[int], None]
_CHUNK_BYTES = 1 << 20
_MAGIC = b"GGUF"
INCOMPLETE = ".incomplete"


@dataclass(frozen=True)
class Wanted:
    """A file to fetch. `digest` is `sha256:…`, `git:…` (a git object's SHA-1) or empty, `n_bytes` may be unknown."""

    name: str
    url: str
    target: Path
    n_bytes: int | None = None
    digest: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def part(self) -> Path:
        """Where it lies while it is not whole."""
        return self.target.with_name(self.target.name + INCOMPLETE)

    @property
    def n_here(self) -> int:
        """Bytes that are on the disk already."""
        for path in (self.target, self.part):
            with contextlib.suppress(FileNotFoundError):
                return path.stat().st_size
        return 0


class _Sink:
    """A file that is summed while it is written; what http_get needs of a file."""

    def __init__(self, file: BinaryIO, wanted: Wanted, progress: Progress) -> None:
        self._file, self._wanted, self._progress = file, wanted, progress
        self._restart()
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            self._count(chunk)

    def _restart(self) -> None:
        self.n_bytes = 0
        kind = self._wanted.digest.partition(":")[0]
        self.hash = hashlib.sha1(usedforsecurity=False) if kind == "git" else hashlib.sha256()
        if kind == "git":
            self.hash.update(f"blob {self._wanted.n_bytes}\0".encode())

    def _count(self, chunk: bytes) -> None:
        self.hash.update(chunk)
        self.n_bytes += len(chunk)
        self._progress(self.n_bytes)

    def write(self, chunk: bytes) -> int:
        rest = memoryview(chunk)
        while rest:  # an unbuffered file may take less than it is given
            rest = rest[self._file.write(rest) :]
        self._count(chunk)
        return len(chunk)

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def truncate(self) -> None:
        """Drop everything: the server sends the whole file anew."""
        self._file.truncate()
        self._restart()


def transfer(wanted: Wanted, progress: Progress) -> str:
    """Fetch a file that is not there yet, or the rest of it; gives the hexadecimal sum of its content.

    Raises DownloadError where it cannot be had or is not what was promised, ConfigError for what the server refuses.
    """
    wanted.target.parent.mkdir(parents=True, exist_ok=True)
    with _part(wanted) as file:
        sink = _Sink(file, wanted, progress)
        if wanted.n_bytes is not None and sink.n_bytes > wanted.n_bytes:
            file.seek(0)
            sink.truncate()
        if wanted.target.exists():  # another process was faster
            wanted.part.unlink(missing_ok=True)
            return sink.hash.hexdigest()
        _receive(wanted, sink)
        _check(wanted, sink, file)
        os.fsync(file.fileno())
        os.replace(wanted.part, wanted.target)
        return sink.hash.hexdigest()


@contextlib.contextmanager
def _part(wanted: Wanted) -> Iterator[BinaryIO]:
    """The incomplete file, opened and locked; waits for another process that writes it."""
    while True:
        with open(wanted.part, "a+b", buffering=0) as file:
            with contextlib.suppress(OSError):  # not all file systems have locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if wanted.target.exists() or _is_same(file, wanted.part):
                yield file
                return


def _is_same(file: BinaryIO, path: Path) -> bool:
    """Whether the path still leads to the file, which another process may have moved or removed."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _receive(wanted: Wanted, sink: _Sink) -> None:
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.file_download import http_get

    # The base of the errors of the HTTP library, whichever huggingface_hub has.
    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    while wanted.n_bytes is None or sink.n_bytes < wanted.n_bytes:
        before = sink.n_bytes
        try:
            with _quiet():
                http_get(
                    wanted.url, cast(BinaryIO, sink), resume_size=before, headers=dict(wanted.headers), expected_size=wanted.n_bytes,
                    tqdm_class=_no_bar(),
                )  # fmt: skip
            return
        except HfHubHTTPError as error:
            raise explained(error, wanted.name) from error
        except (network_error, OSError) as error:
            is_disk = isinstance(error, OSError) and error.errno is not None
            if is_disk or sink.n_bytes == before:
                raise _broken(wanted, sink.n_bytes, error) from error


def _broken(wanted: Wanted, n_bytes: int, error: Exception) -> DownloadError:
    of = "" if wanted.n_bytes is None else f" of {wanted.n_bytes}"
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return DownloadError(
        f"{wanted.name} broke off after {n_bytes}{of} bytes: {reason}; these stay, and the same command goes on there"
    )


def _check(wanted: Wanted, sink: _Sink, file: BinaryIO) -> None:
    """Remove a file that is not what was promised, and say so."""
    file.seek(0)
    start = file.read(len(_MAGIC))
    promised, found = wanted.digest.partition(":")[2], sink.hash.hexdigest()
    if wanted.n_bytes is not None and sink.n_bytes != wanted.n_bytes:
        wrong = f"has {sink.n_bytes} bytes in place of {wanted.n_bytes}"
    elif promised and promised != found:
        kind = "SHA-1 as a git object" if wanted.digest.startswith("git:") else "SHA-256"
        wrong = f"has the {kind} {found} in place of {promised}"
    elif start != _MAGIC:
        wrong = f"is no GGUF file; it begins with {start!r}"
    else:
        return
    wanted.part.unlink()
    raise DownloadError(f"{wanted.name} {wrong}; what came was removed")


def _no_bar() -> type[Any]:
    from tqdm import tqdm

    class NoBar(tqdm):  # type: ignore[type-arg,misc,unused-ignore]
        """A bar that shows nothing: bytes are counted where they are written."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*arguments, **options | {"disable": True})

    return NoBar


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the lines about retries, which hold whole addresses."""
    logger = logging.getLogger("huggingface_hub.file_download")
    was = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's content."""
    total = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()


def check_disk(folder: Path, n_bytes: int, what: str) -> None:
    """Raises DownloadError where a folder's disk has no room for so many bytes more."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if n_bytes > free:
        raise DownloadError(
            f"{what} needs {n_bytes / 2**30:.2f} GiB and {there} has {free / 2**30:.2f} GiB free; make room, or set "
            "HF_HUB_CACHE (models of the hub) or PYGGML_CACHE (others) to a folder on another disk"
        )
