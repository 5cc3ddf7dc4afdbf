"""GGUF models as users see them: one file, or all files of a model that was split.

A split model is opened by its first file; the others are found beside it by name and held against it.
Nothing is read but headers until a value or a tensor is asked for. Safe to read from several threads.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

import numpy as np

from .errors import GGUFError
from .gguf_file import GGUFFile
from .gguf_metadata import GGUFMetadata
from .gguf_tensor import GGUFTensor

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
_SHARD_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)


class GGUF:
    """A GGUF model: its metadata, and its tensors by name.

    Use it in a `with` block or close it; arrays taken from it stay valid after that.
    Raises GGUFError naming path and field when a file is damaged, hostile, incomplete or missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        first = GGUFFile(path)
        self._files = [first, *_other_shards(first)]
        self.path = first.path
        self.version = first.version
        self.alignment = first.alignment
        self.metadata: GGUFMetadata = first.metadata
        self.tensors: Mapping[str, GGUFTensor] = MappingProxyType(_all_tensors(self._files))

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the model, in order."""
        return tuple(file.path for file in self._files)

    @property
    def architecture(self) -> str | None:
        """The value of general.architecture, None if the file has none."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else None

    def memory(self, file_index: int) -> np.ndarray:
        """A whole mapped file, in which each of its tensors lies at its `offset`.

        Shapes: uint8 [bytes of the file], read-only.
        """
        return self._files[file_index].memory

    def __getitem__(self, name: str) -> GGUFTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            near = difflib.get_close_matches(name, self.tensors, n=3)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise GGUFError(self.path, name, f"the file has no such tensor{hint}")
        return tensor

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def close(self) -> None:
        """Unmap the files as soon as no array views them any more."""
        for file in self._files:
            file.close()

    def __enter__(self) -> GGUF:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"GGUF({self.path!r}, {self.architecture}, {len(self.tensors)} tensors)"


def shard_path(stem: str, number: int, count: int) -> str:
    """The name of file `number`, from 0, of a split model."""
    return f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


def _other_shards(first: GGUFFile) -> list[GGUFFile]:
    count = _split_value(first, SPLIT_COUNT, default=1)
    if count <= 1:
        return []
    stem = _stem(first, count)
    paths = [shard_path(stem, i, count) for i in range(1, count)]
    for path in paths:
        if not os.path.exists(path):
            rest = f"it is one of the {count} files of {first.path} and has to lie beside it"
            raise GGUFError(path, "file", f"no such file; {rest}")
    shards = [GGUFFile(path, i) for i, path in enumerate(paths, 1)]
    for number, shard in enumerate(shards, 1):
        _check_shard(first, shard, number)
    return shards


def _split_value(file: GGUFFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if not isinstance(value, int):
        raise GGUFError(file.path, key, f"has type {file.metadata.types[key]}; an integer belongs here")
    return value


def _stem(first: GGUFFile, count: int) -> str:
    """The part of the names that the model's files share."""
    number = _split_value(first, SPLIT_NO, default=0)
    match = _SHARD_NAME.fullmatch(first.path)
    if number != 0:
        name = shard_path(match[1], 0, count) if match else f"whose name ends in {shard_path('', 0, count)}"
        raise GGUFError(
            first.path, SPLIT_NO, f"this is file {number + 1} of {count}; open the first one, {name}"
        )
    if match is None or first.path != shard_path(match[1], 0, count):
        wanted = f"rename it to end in {shard_path('', 0, count)}"
        problem = f"this is the first of {count} files, and the others are found by its name; {wanted}"
        raise GGUFError(first.path, SPLIT_COUNT, problem)
    return match[1]


def _check_shard(first: GGUFFile, shard: GGUFFile, number: int) -> None:
    """Refuse a file of another model: whatever both files say has to agree."""
    wanted: dict[str, Any] = {
        SPLIT_NO: number,
        SPLIT_COUNT: first.metadata[SPLIT_COUNT],
        SPLIT_TENSORS: first.metadata.get(SPLIT_TENSORS),
    }
    for key in first.metadata:
        if key in shard.metadata and not first.metadata.types[key].endswith("[]"):
            wanted.setdefault(key, first.metadata[key])
    for key, value in wanted.items():
        found = shard.metadata.get(key)
        if found != value:
            rest = f"by {first.path} it has to be {value!r}: the file belongs to another model"
            raise GGUFError(shard.path, key, f"is {found!r}; {rest}")


def _all_tensors(files: list[GGUFFile]) -> dict[str, GGUFTensor]:
    tensors: dict[str, GGUFTensor] = {}
    for file in files:
        for tensor in file.tensors:
            if tensor.name in tensors:
                other = files[tensors[tensor.name].file_index].path
                raise GGUFError(file.path, tensor.name, f"is in {other} too: they belong to different models")
            tensors[tensor.name] = tensor
    wanted = files[0].metadata.get(SPLIT_TENSORS)
    if len(files) > 1 and wanted is not None and len(tensors) != wanted:
        problem = f"the {len(files)} files have {len(tensors)} tensors, not {wanted}: one is of another model"
        raise GGUFError(files[0].path, SPLIT_TENSORS, problem)
    return tensors
