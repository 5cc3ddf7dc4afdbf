"""Weights of one rank: found in the file by the family's table, put where the device reads them best.

On a CPU plain weights stay in the mapped file; only those that gain from a repacked layout are
copied. On other devices each tensor goes from the mapped file straight into device memory, so host
memory stays near one tensor. Strict both ways: a missing tensor and an unknown one are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import pyggml as gg

from .cuts import WHOLE, Slice, TensorPlan
from .errors import MissingTensor, ModelError
from .hparams import HParams
from .models.family import Family
from .slices import Axis
from .weight_table import Cut, Source, Use, Weight

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Found:
    """A row of the table with its tensor in the file, of which it is all or the part that `source` tells."""

    row: Weight
    tensor: gg.GGUFTensor
    source: Source

    @property
    def is_tied_head(self) -> bool:
        """Whether it is a head that the embedding stands in for."""
        return self.row.cut is Cut.VOCAB and self.row.name != self.tensor.name

    @property
    def data(self) -> np.ndarray:
        """Its bytes, as they lie in the mapped file where they lie together there."""
        shape, axis, start = self.source.shape, self.source.axis, self.source.start
        if shape == self.row.shape:
            return self.tensor.data
        part = Slice(Axis.OUT, axis, ((start, start + self.row.shape[axis]),))
        return part.of(self.tensor.data, shape, self.tensor.type)


@dataclass(frozen=True)
class Part:
    """One rank's part of a weight: which tensor, and what of it."""

    found: Found
    slice: Slice = WHOLE

    @property
    def name(self) -> str:
        """The table's name."""
        return self.found.row.name

    @property
    def kind(self) -> gg.DType:
        """The element type, which is the file's."""
        return self.found.tensor.type

    @property
    def use(self) -> Use:
        """The operation that reads it."""
        return self.found.row.use

    @property
    def shape(self) -> tuple[int, ...]:
        """The part's shape."""
        return self.slice.shape(self.found.row.shape)

    @property
    def n_bytes(self) -> int:
        """The part's bytes."""
        return self.slice.n_bytes(self.found.row.shape, self.kind)

    def data(self) -> np.ndarray:
        """The part's bytes; a view of the mapped file where they lie together there."""
        return self.slice.of(self.found.data, self.found.row.shape, self.kind)


def whole_parts(found: Iterable[Found]) -> list[Part]:
    """Everything, for a single rank."""
    return [Part(f) for f in found]


def tensor_parts(found: Iterable[Found], plan: TensorPlan, rank: int) -> list[Part]:
    """A rank's slices of every weight."""
    slices = ((f, plan.slice_of(f.row.name, rank)) for f in found)
    return [Part(f, part) for f, part in slices if part is not None]


def layer_parts(found: Iterable[Found], layers: range, n_layer: int) -> list[Part]:
    """The weights of a stage: its layers, the embedding on the first stage, norm and head on the last."""

    def is_here(name: str) -> bool:
        if name.startswith("blk."):
            return int(name.split(".")[1]) in layers
        if name.startswith("token_embd"):
            return layers.start == 0
        return layers.stop == n_layer if name.startswith("output") else True

    return [Part(f) for f in found if is_here(f.row.name)]


def find_weights(file: gg.GGUF, family: Family, hp: HParams) -> list[Found]:
    """Match the family's table with the file.

    Raises MissingTensor, or ModelError for a wrong shape or a tensor that the family does not know.
    """
    found, known = [], set()
    for row in family.table(hp):
        match = _match(file, row)
        if match is None:
            if row.optional:
                continue
            raise MissingTensor(
                f"{file.path}: the tensor {row.name} is missing; {family.arch} models need it"
            )
        known.add(match.tensor.name)
        found.append(match)
    unknown = [n for n in file.tensors if n not in known and not _is_unused(n, family, hp)]
    if unknown:
        raise ModelError(
            f"{file.path}: {len(unknown)} tensors that {family.arch} does not use, {unknown[0]} first; "
            "the file is of another family or of a newer version of it"
        )
    return found


def _match(file: gg.GGUF, row: Weight) -> Found | None:
    """The first of a row's places that the file has. Raises ModelError where all tensors there have other shapes."""
    sources = [Source(row.name, row.shape)] + ([row.source] if row.source else [])
    present = [source for source in sources if source.name in file.tensors]
    for source in present:
        tensor = file.tensors[source.name]
        if _without_ones(tensor.shape) == _without_ones(source.shape):
            return Found(row, tensor, source)
    if present:
        name = present[0].name
        raise ModelError(
            f"{file.path}: {name} has shape {tuple(file.tensors[name].shape)}; "
            f"by the metadata it must be {present[0].shape}"
        )
    return None


def _without_ones(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape as files have it, which drop outer lengths of 1."""
    outer = next((i for i, n in enumerate(shape) if n != 1), len(shape))
    return tuple(shape[outer:])


def _is_unused(name: str, family: Family, hp: HParams) -> bool:
    """Whether files carry the tensor and inference does not need it."""
    later = range(hp.n_layer, hp.n_layer + hp.n_layer_nextn)
    return name.endswith(family.unused) or any(name.startswith(f"blk.{i}.") for i in later)


class Weights(Mapping[str, gg.Tensor]):
    """The rank's weights by GGUF name.

    `host_tables` are those in whose type the device cannot look rows up, as the token embedding's: their names are
    then absent and the plan looks them up itself.
    """

    def __init__(self, backend: gg.Backend, parts: Sequence[Part], progress: Progress | None = None) -> None:
        self.host_tables: dict[str, gg.GGUFTensor] = {}
        self._tensors: dict[str, gg.Tensor] = {}
        self._buffers: list[gg.Buffer] = []
        self._backend = backend
        self.mapped_bytes = 0
        try:
            self._load(parts, progress or (lambda done, total: None))
        except BaseException:
            self.close()
            raise

    def _load(self, parts: Sequence[Part], progress: Progress) -> None:
        total = sum(part.n_bytes for part in parts)
        groups: dict[Any, list[Part]] = {}
        plain = self._backend.buffer_types()[-1]
        done = 0
        for part in parts:
            if part.use is Use.GET_ROWS and not _can_look_up(self._backend, part.found.tensor):
                self.host_tables[part.name] = part.found.tensor
                done += part.n_bytes
                continue
            buffer_type = _buffer_type(self._backend, part)
            if buffer_type == plain and self._map(part):
                done += part.n_bytes
            else:
                groups.setdefault(buffer_type, []).append(part)
        progress(done, total)
        for buffer_type, members in groups.items():
            specs = {part.name: (part.shape, part.kind) for part in members}
            buffer = gg.Buffer(self._backend, specs, buffer_type=buffer_type, weights=True)
            self._buffers.append(buffer)
            for part in members:
                buffer[part.name].set(part.data())
                self._tensors[part.name] = buffer[part.name]
                done += part.n_bytes
                progress(done, total)

    def _map(self, part: Part) -> bool:
        """Leave the part in the mapped file, where the device can read it there."""
        if self._backend.device.kind != "cpu":
            return False
        data = part.data()
        if not np.may_share_memory(data, part.found.tensor.data):
            return False
        try:
            buffer = gg.Buffer.from_memory(self._backend, data, {part.name: (part.shape, part.kind, 0)})
        except gg.ShapeError:
            return False
        self._buffers.append(buffer)
        self._tensors[part.name] = buffer[part.name]
        if not part.found.is_tied_head:  # which is the embedding's memory again
            self.mapped_bytes += part.n_bytes
        return True

    def embed(self, name: str, ids: np.ndarray) -> np.ndarray:
        """Rows of a table on the host as float32, [n, width of the table]."""
        table = self.host_tables[name]
        rows = np.concatenate([table.rows(int(i), int(i) + 1) for i in ids])
        return gg.dequantize(rows, table.type, (len(ids), table.shape[1]))

    @property
    def n_bytes(self) -> int:
        """Bytes allocated on the device; mapped weights do not count."""
        return sum(buffer.n_bytes for buffer in self._buffers)

    def close(self) -> None:
        """Free the device memory."""
        for buffer in self._buffers:
            buffer.close()
        self._buffers, self._tensors = [], {}

    def __getitem__(self, name: str) -> gg.Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def is_mapped(backend: gg.Backend, part: Part) -> bool:
    """Whether a CPU reads a whole weight in the mapped file, in memory of its own that several processes share."""
    is_plain: bool = _buffer_type(backend, part) == backend.buffer_types()[-1]
    return is_plain and backend.device.kind == "cpu" and not part.found.is_tied_head


def _buffer_type(backend: gg.Backend, part: Part) -> Any:
    """The layout in which a weight is read fastest."""
    if part.use in (Use.MUL_MAT, Use.MUL_MAT_ID):
        return backend.weight_buffer_type(part.shape, part.kind, experts=part.use is Use.MUL_MAT_ID)
    return backend.buffer_types()[-1]


def host_rows(of_ranks: Iterable[Weights]) -> Callable[[str, np.ndarray], np.ndarray] | None:
    """What looks rows up by table and ids for the ranks whose devices cannot; None where all can."""
    holders = {name: weights for weights in of_ranks for name in weights.host_tables}
    if not holders:
        return None
    return lambda name, ids: holders[name].embed(name, ids)


def _can_look_up(backend: gg.Backend, tensor: gg.GGUFTensor) -> bool:
    """Whether the device has get_rows for the tensor's type."""
    with gg.Graph(backend, max_nodes=8) as g:
        table = g.phantom("table", tensor.shape, tensor.type)
        return backend.supports(gg.get_rows(table, g.input("ids", (1,), "i32")))
