"""Files that keep beginnings of prompts, evaluated once, over restarts of the process.

A file holds token ids and the cache rows of every table of every rank, between a header and a digest of all of it.
It is written beside its place and renamed, so a file that is there is whole. `identity` names the model's file, the
cache types and the layout over ranks; files of another identity are never looked at. When all files of the folder are
larger than `max_bytes`, those not used for longest are removed. Several processes may share a folder.
Files are written on a thread of its own; everything else happens on the caller's.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .prefix_tree import Ids

LOG = logging.getLogger("pyggml.engine")
MAGIC = b"pyggml prefix 1\n"
SUFFIX = ".prefix"
_DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 1 << 16
_OLD_S = 86400.0


class PrefixStore:
    """A folder of prefix files for one identity. `row_bytes` are the bytes of a token in each part, in order."""

    def __init__(self, folder: str | os.PathLike[str], identity: str, row_bytes: Sequence[int], max_bytes: int) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._identity = identity
        self._row_bytes = list(row_bytes)
        self._max_bytes = max_bytes
        self._ready: queue.SimpleQueue[tuple[str, Ids]] = queue.SimpleQueue()
        self._to_write: queue.SimpleQueue[tuple[Ids, Sequence[np.ndarray]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.sizes: dict[str, int] = {}
        for path in sorted(self.folder.glob(f"{identity}-*{SUFFIX}")):
            self._find(path)

    def _find(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                ids, _ = self._begin(file, path.stat().st_size)
        except (OSError, ValueError) as error:
            LOG.warning("%s is not used as a prefix: %s", path, error)
            return
        self.sizes[path.name] = path.stat().st_size
        self._ready.put((path.name, ids))

    def ready(self) -> Mapping[str, Ids]:
        """Files found or written since the last call, by name."""
        found = {}
        while not self._ready.empty():
            name, ids = self._ready.get()
            found[name] = ids
        return found

    def _begin(self, file: Any, size: int) -> tuple[Ids, int]:
        """Token ids and the place of the rows. Raises ValueError for what is no file of this identity."""
        start = file.read(len(MAGIC) + 4)
        if start[: len(MAGIC)] != MAGIC or len(start) < len(MAGIC) + 4:
            raise ValueError("it does not begin as a prefix file does")
        (n_header,) = struct.unpack("<I", start[len(MAGIC) :])
        if n_header > _MAX_HEADER_BYTES:
            raise ValueError("its header is too long")
        header = json.loads(file.read(n_header))
        n = header.get("n_tokens") if isinstance(header, dict) else None
        if not isinstance(n, int) or header.get("identity") != self._identity or n < 1:
            raise ValueError("its header is not of this model and cache")
        at = len(MAGIC) + 4 + n_header
        if header.get("row_bytes") != self._row_bytes or size != at + n * (4 + sum(self._row_bytes)) + _DIGEST_BYTES:
            raise ValueError("its size is not what its header says")
        raw = file.read(4 * n)
        if hashlib.blake2b(raw, digest_size=16).hexdigest() != header.get("ids"):
            raise ValueError("its token ids are damaged")
        return np.frombuffer(raw, np.int32), at + 4 * n

    def load(self, name: str, start: int, stop: int) -> list[np.ndarray] | None:
        """The bytes of rows `start` to `stop` of each part; None for a file that is gone or damaged."""
        path = self.folder / name
        try:
            raw = np.fromfile(path, np.uint8)
            with path.open("rb") as file:
                ids, at = self._begin(file, raw.size)
            whole = raw.data
            digest = hashlib.blake2b(whole[:-_DIGEST_BYTES], digest_size=_DIGEST_BYTES).digest()
            if digest != whole[-_DIGEST_BYTES:].tobytes():
                raise ValueError("it is damaged")
            os.utime(path)
        except (OSError, ValueError) as error:
            LOG.warning("%s is not used as a prefix: %s", path, error)
            self.sizes.pop(name, None)
            return None
        parts = []
        for row_bytes in self._row_bytes:
            parts.append(raw[at + start * row_bytes : at + stop * row_bytes])
            at += len(ids) * row_bytes
        return parts

    def save(self, ids: Ids, parts: Sequence[np.ndarray]) -> None:
        """Write a file in the background."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="pyggml-prefixes", daemon=True)
            self._thread.start()
        self._to_write.put((ids.copy(), parts))

    def _write_all(self) -> None:
        while (job := self._to_write.get()) is not None:
            ids, parts = job
            try:
                self._write(ids, parts)
            except OSError as error:
                LOG.warning("no prefix was written to %s: %s", self.folder, error)

    def _write(self, ids: Ids, parts: Sequence[np.ndarray]) -> None:
        of_ids = hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()
        header = json.dumps(
            {"identity": self._identity, "n_tokens": len(ids), "ids": of_ids, "row_bytes": self._row_bytes}
        ).encode()
        start = MAGIC + struct.pack("<I", len(header)) + header + ids.tobytes()
        pieces = [memoryview(start), *(part.data for part in parts)]
        size = sum(piece.nbytes for piece in pieces) + _DIGEST_BYTES
        if not self._make_room(size):
            return
        name = f"{self._identity}-{of_ids}{SUFFIX}"
        beside = self.folder / f".{name}.{os.getpid()}"
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        try:
            with beside.open("wb") as file:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.folder / name)
        finally:
            beside.unlink(missing_ok=True)
        self.sizes[name] = size
        self._ready.put((name, ids))

    def _make_room(self, size: int) -> bool:
        """Remove files until this many bytes fit; False where they never would."""
        if size > self._max_bytes:
            LOG.warning("a prefix of %d bytes was not kept: all together may have %d", size, self._max_bytes)
            return False
        found = []
        for path in self.folder.iterdir():
            if path.suffix == SUFFIX or path.name.startswith(".") and SUFFIX in path.name:
                stat = path.stat()
                found.append((stat.st_mtime, stat.st_size, path))
        total = sum(n for _, n, _ in found)
        for used_s, n_bytes, path in sorted(found):
            is_left_over = path.suffix != SUFFIX and time.time() - used_s > _OLD_S
            if is_left_over or (total + size > self._max_bytes and path.suffix == SUFFIX):
                path.unlink(missing_ok=True)
                self.sizes.pop(path.name, None)
                total -= n_bytes
        return True

    def close(self) -> None:
        """Finish what is being written."""
        if self._thread is not None:
            self._to_write.put(None)
            self._thread.join()
            self._thread = None


def file_identity(paths: Sequence[str | os.PathLike[str]], *facts: object) -> str:
    """A name for the contents of files and what else must be the same: sizes, times, both ends and samples between."""
    digest = hashlib.blake2b(repr(facts).encode(), digest_size=12)
    piece = 1 << 16
    for path in paths:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            digest.update(struct.pack("<qq", stat.st_size, stat.st_mtime_ns))
            for at in (0, *(stat.st_size * i // 32 for i in range(1, 32)), max(0, stat.st_size - piece)):
                file.seek(at)
                digest.update(file.read(piece))
    return digest.hexdigest()
