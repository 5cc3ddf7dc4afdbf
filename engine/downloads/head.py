"""The heads of GGUF files that lie elsewhere: files of the same lengths, with holes in place of the weights.

A few megabytes of a file say all that it is. A file of them opens like the whole one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyggml as gg

from .transfer import Wanted, read_range

_FIRST_BYTES, _MOST_BYTES = 1 << 20, 1 << 26


class Heads:
    """The heads of a repository's models, whose vocabulary, the longest part, is the same."""

    def __init__(self) -> None:
        self._n_bytes = _FIRST_BYTES

    @contextmanager
    def of(self, wanted: Sequence[Wanted], names: Sequence[str]) -> Iterator[Path | None]:
        """The first of a model's files, as long as the block lasts; None where the heads cannot be had.

        `names` are the files' own, which tell shards apart.
        """
        with tempfile.TemporaryDirectory(prefix="pyggml-") as folder:
            paths = [Path(folder) / Path(name).name for name in names]
            yield paths[0] if self._fill(wanted, paths) else None

    def _fill(self, wanted: Sequence[Wanted], paths: Sequence[Path]) -> bool:
        n_had = 0
        while n_had < _MOST_BYTES:
            if not all(_extend(each, path, n_had, self._n_bytes) for each, path in zip(wanted, paths)):
                return False
            if _opens(paths[0]):
                return True
            n_had, self._n_bytes = self._n_bytes, self._n_bytes * 2
        return False


def _extend(wanted: Wanted, path: Path, start: int, end: int) -> bool:
    """Write these bytes of a file into its copy, if they can be had."""
    if wanted.n_bytes is None:
        return False
    content = read_range(wanted, start, min(end, wanted.n_bytes))
    if content is None:
        return False
    with open(path, "r+b" if start else "wb") as file:
        file.seek(start)
        file.write(content)
        file.truncate(wanted.n_bytes)
    return True


def _opens(path: Path) -> bool:
    """Whether the files open; those whose head is cut off lack the names of tensors, and do not."""
    try:
        with gg.GGUF(path) as file:
            return all(file.tensors)
    except gg.GGUFError:
        return False
