"""One file over HTTP onto the disk: what came stays when the connection breaks, and nothing is kept unchecked.

What is not whole yet lies beside its place under the name `….incomplete`, locked while a process writes it; sums are
made while the bytes come. Connections, redirects and proxies are huggingface_hub's.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.client import PARTIAL_CONTENT, REQUESTED_RANGE_NOT_SATISFIABLE
from pathlib import Path
from typing import BinaryIO

from ..errors import DownloadError
from .refusals import explained

Progress = Callable[[int], None]
_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_MAX_IDLE = 5  # times in a row that nothing came
_MAX_WAIT_S = 8.0
_TRANSIENT = (408, 429, 500, 502, 503, 504)
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
    is_gguf: bool = True

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
    """The incomplete file, summed while it is written."""

    def __init__(self, file: BinaryIO, wanted: Wanted, progress: Progress) -> None:
        self._file, self._wanted, self._progress = file, wanted, progress
        self._begin()
        file.seek(0)
        while chunk := file.read(_CHUNK_BYTES):
            self._count(chunk)

    def _begin(self) -> None:
        self.n_bytes = 0
        is_git = self._wanted.digest.startswith("git:")
        self.hash = hashlib.sha1(usedforsecurity=False) if is_git else hashlib.sha256()
        if is_git:
            self.hash.update(f"blob {self._wanted.n_bytes}\0".encode())

    def _count(self, chunk: bytes | memoryview) -> None:
        self.hash.update(chunk)
        self.n_bytes += len(chunk)
        self._progress(self.n_bytes)

    def write(self, chunk: bytes) -> None:
        """Append."""
        rest = memoryview(chunk)
        while rest:  # an unbuffered file may take less than it is given
            n_written = self._file.write(rest)
            self._count(rest[:n_written])
            rest = rest[n_written:]

    def clear(self) -> None:
        """Drop everything."""
        self._file.seek(0)
        self._file.truncate()
        self._begin()

    def start(self) -> bytes:
        """The first bytes."""
        self._file.seek(0)
        return self._file.read(len(_MAGIC))


def transfer(wanted: Wanted, progress: Progress) -> str:
    """Fetch a file that is not there yet, or the rest of it; gives the hexadecimal sum of its content,
    or nothing where another process was faster.

    Raises DownloadError where it cannot be had or is not what was promised, ConfigError for what the server refuses.
    """
    wanted.target.parent.mkdir(parents=True, exist_ok=True)
    with _part(wanted) as file:
        if wanted.target.exists():
            wanted.part.unlink(missing_ok=True)
            return ""
        sink = _Sink(file, wanted, progress)
        if wanted.n_bytes is not None and sink.n_bytes > wanted.n_bytes:
            sink.clear()
        try:
            _receive(wanted, sink)
        except BaseException:
            if not sink.n_bytes:
                wanted.part.unlink(missing_ok=True)
            raise
        _check(wanted, sink)
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
    """Ask again from where the connection broke, until nothing more comes for several times."""
    from huggingface_hub.errors import HfHubHTTPError

    # The base of the errors of the HTTP library, whichever huggingface_hub has.
    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    n_idle = 0
    while wanted.n_bytes is None or sink.n_bytes < wanted.n_bytes:
        before = sink.n_bytes
        try:
            _stream(wanted, sink)
            return
        except HfHubHTTPError as error:
            if error.response.status_code == REQUESTED_RANGE_NOT_SATISFIABLE and before:
                sink.clear()
            elif error.response.status_code not in _TRANSIENT or n_idle == _MAX_IDLE:
                raise explained(error, wanted.name) from error
        except network_error as error:
            if n_idle == _MAX_IDLE:
                raise _broken(wanted, sink.n_bytes, error) from error
        except OSError as error:
            raise _broken(wanted, sink.n_bytes, error) from error
        n_idle = 0 if sink.n_bytes > before else n_idle + 1
        time.sleep(min(_MAX_WAIT_S, 2.0**n_idle / 2))


def _stream(wanted: Wanted, sink: _Sink) -> None:
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

    headers = dict(wanted.headers)
    if sink.n_bytes:
        headers["Range"] = f"bytes={sink.n_bytes}-"
    with http_stream_backoff(
        "GET", wanted.url, headers=headers, timeout=_TIMEOUT_S, retry_on_exceptions=(), retry_on_status_codes=()
    ) as response:
        hf_raise_for_status(response)
        if sink.n_bytes and response.status_code != PARTIAL_CONTENT:
            sink.clear()  # the server sends the whole file anew
        for chunk in response.iter_bytes():
            sink.write(chunk)


def read_range(wanted: Wanted, start: int, end: int) -> bytes | None:
    """These bytes of a file; None where they cannot be had."""
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils import hf_raise_for_status, http_stream_backoff

    network_error: type[Exception] = HfHubHTTPError.__bases__[0]
    if start >= end:
        return b""
    headers = dict(wanted.headers) | {"Range": f"bytes={start}-{end - 1}"}
    content = bytearray()
    try:
        with http_stream_backoff(
            "GET", wanted.url, headers=headers, timeout=_TIMEOUT_S, retry_on_exceptions=(), retry_on_status_codes=()
        ) as response:
            hf_raise_for_status(response)
            if response.status_code != PARTIAL_CONTENT and start:
                return None
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) >= end - start:  # a server that knows no ranges sends more
                    break
    except (network_error, OSError):
        return None
    return bytes(content[: end - start])


def _broken(wanted: Wanted, n_bytes: int, error: Exception) -> DownloadError:
    of = "" if wanted.n_bytes is None else f" of {wanted.n_bytes}"
    reason = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
    return DownloadError(
        f"{wanted.name} broke off after {n_bytes}{of} bytes: {reason}; run it again to go on from there"
    )


def _check(wanted: Wanted, sink: _Sink) -> None:
    """Remove a file that is not what was promised, and say so."""
    promised, found = wanted.digest.partition(":")[2], sink.hash.hexdigest()
    if wanted.n_bytes is not None and sink.n_bytes != wanted.n_bytes:
        wrong = f"has {sink.n_bytes} bytes in place of {wanted.n_bytes}"
    elif promised and promised != found:
        kind = "SHA-1 as a git object" if wanted.digest.startswith("git:") else "SHA-256"
        wrong = f"has the {kind} {found} in place of {promised}"
    elif wanted.is_gguf and (start := sink.start()) != _MAGIC:
        wrong = f"is no GGUF file; it begins with {start!r}"
    else:
        return
    wanted.part.unlink()
    raise DownloadError(f"{wanted.name} {wrong}; what came was removed")


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
            f"{what} needs {n_bytes / 2**30:.2f} GiB and {there} has {free / 2**30:.2f} GiB free; make room, or have "
            "it on another disk: HF_HUB_CACHE is the folder of models of the hub, PYGGML_CACHE that of others, and an "
            "option file the path of its own"
        )
