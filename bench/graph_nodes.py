"""Nodes of a graph as compare_nodes.py sees them: what each reads and makes, and which it equals in another graph.

Two devices may build different graphs of one model: FLASH_ATTN_EXT here, two products with a SOFT_MAX there. Nodes
are paired by operation, type, shape and the weights that they read, so that what lies around such parts still is.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pyggml as gg
from pyggml._ffi import ffi, lib

FREE = {"NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"}
IN_NUMPY = {
    lib.GGML_TYPE_F64: np.float64, lib.GGML_TYPE_F32: np.float32, lib.GGML_TYPE_F16: np.float16,
    lib.GGML_TYPE_BF16: np.uint16, lib.GGML_TYPE_I64: np.int64, lib.GGML_TYPE_I32: np.int32,
    lib.GGML_TYPE_I16: np.int16, lib.GGML_TYPE_I8: np.int8,
}  # fmt: skip


def address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def operation(tensor: Any) -> str:
    return ffi.string(lib.ggml_op_desc(tensor)).decode()


def root_of(tensor: Any) -> Any:
    """The tensor whose memory it is."""
    while tensor.view_src != ffi.NULL:
        tensor = tensor.view_src
    return tensor


def sources_of(tensor: Any) -> list[Any]:
    return [source for source in tensor.src if source != ffi.NULL]


def is_weight(root: Any) -> bool:
    buffer = root.buffer
    return buffer != ffi.NULL and (
        lib.ggml_backend_buffer_get_usage(buffer) == lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
    )


def name_of(tensor: Any) -> str:
    return ffi.string(tensor.name).decode("utf-8", "replace")


def described(tensor: Any) -> str:
    """One line: operation, name, type, lengths and strides in ggml's order."""
    kind = ffi.string(lib.ggml_type_name(tensor.type)).decode()
    ne, nb = [int(n) for n in tensor.ne], [int(n) for n in tensor.nb]
    offset = f" +{int(tensor.view_offs)}" if tensor.view_src != ffi.NULL and tensor.view_offs else ""
    strided = "" if lib.ggml_is_contiguous(tensor) else " strided"
    return f"{operation(tensor)} {name_of(tensor)!r} {kind} ne={ne} nb={nb}{offset}{strided}"


def read(tensor: Any) -> np.ndarray:
    """Its bytes."""
    raw = np.empty(int(lib.ggml_nbytes(tensor)), np.uint8)
    if raw.size:
        lib.ggml_backend_tensor_get(tensor, ffi.from_buffer(raw), 0, raw.size)
    return raw


def write(tensor: Any, raw: np.ndarray) -> None:
    lib.ggml_backend_tensor_set(tensor, ffi.from_buffer(raw), 0, raw.size)


@dataclass(frozen=True)
class View:
    """How a tensor's numbers lie in its root's bytes, as it was at one time: windows of a cache move."""

    type: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    offset: int
    is_contiguous: bool

    @classmethod
    def of(cls, tensor: Any) -> View:
        offset = int(tensor.view_offs) if tensor.view_src != ffi.NULL else 0
        ne, nb = (tuple(int(n) for n in numbers) for numbers in (tensor.ne, tensor.nb))
        return cls(int(tensor.type), ne, nb, offset, bool(lib.ggml_is_contiguous(tensor)))

    def values(self, raw: np.ndarray, offset: int = 0) -> np.ndarray | None:
        """The numbers in float64; None for strided blocks."""
        shape = self.ne[::-1]
        kind = IN_NUMPY.get(self.type)
        if kind is None:
            if not self.is_contiguous:
                return None
            size = int(lib.ggml_row_size(self.type, self.ne[0])) * int(np.prod(self.ne[1:]))
            return np.asarray(gg.dequantize(raw[offset : offset + size], self.type, shape), np.float64)
        numbers = np.ndarray(shape, kind, raw, offset, self.nb[::-1])
        if self.type == lib.GGML_TYPE_BF16:
            numbers = (np.ascontiguousarray(numbers).astype(np.uint32) << 16).view(np.float32)
        return numbers.astype(np.float64)

    def of_root(self, raw: np.ndarray) -> np.ndarray | None:
        """The numbers, from the root's bytes."""
        return self.values(raw, self.offset)


class Source:
    """What a node reads."""

    def __init__(self, tensor: Any) -> None:
        self.root = root_of(tensor)
        self.root_address = address(self.root)
        self.view = View.of(tensor)
        self.text = described(tensor)
        self.operation = operation(tensor)


class Node:
    """A node that computes. Of the CPU's, `fed` are the bytes of the roots that it read (None for weights)."""

    def __init__(self, tensor: Any, index: int, signature: int, leaves: tuple[str, ...]) -> None:
        self.tensor, self.index, self.signature = tensor, index, signature
        self.operation, self.text, self.view = operation(tensor), described(tensor), View.of(tensor)
        self.key = (self.operation, self.view.type, self.view.ne, leaves)
        self.root_address = address(root_of(tensor))
        self.sources = [Source(source) for source in sources_of(tensor)]
        self.twin: Node | None = None
        self.made: np.ndarray | None = None
        self.fed: list[np.ndarray | None] = []

    @property
    def kind(self) -> str:
        """Its operation and what made what it reads."""
        read = ("leaf" if s.operation == "NONE" else s.operation for s in self.sources)
        return f"{self.operation} <- {' '.join(read) or 'nothing'}"

    @property
    def has_floats(self) -> bool:
        return self.view.is_contiguous and self.view.type in (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16)


@dataclass(frozen=True)
class ReadValue:
    """How far a source was from the CPU's; `alarm` says so where no compared node is to blame."""

    text: str
    error: float | None = None
    alarm: str = ""
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """One compared node."""

    node: Node
    error: float
    is_bad: bool
    note: str
    example: str
    sources: list[ReadValue]

    @property
    def has_bad_source(self) -> bool:
        return any(source.alarm for source in self.sources)

    @property
    def differs(self) -> bool:
        return self.is_bad or self.has_bad_source


@dataclass
class RankRun:
    """What one rank computes in one run."""

    number: int
    rank: int
    backend: int
    nodes: list[Node]
    findings: list[Finding] = field(default_factory=list)
    reading: list[ReadValue] = field(default_factory=list)  # by the node that is being computed
    only_here: list[Node] = field(default_factory=list)
    only_there: list[Node] = field(default_factory=list)
    bad_roots: set[int] = field(default_factory=set)
    uncompared_roots: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.at = {address(node.tensor): node for node in self.nodes}
        self._written = {node.root_address for node in self.nodes}

    @classmethod
    def of(cls, graph: gg.Graph, number: int, rank: int) -> RankRun:
        """Of a graph that is laid out."""
        handle = graph._graph
        names, nodes = _Names(), []
        for index in range(int(lib.ggml_graph_n_nodes(handle))):
            tensor = lib.ggml_graph_node(handle, index)
            signature, leaves = names.signature(tensor), names.leaves(tensor)
            if operation(tensor) not in FREE and all(n > 0 for n in tensor.ne):
                nodes.append(Node(tensor, index, signature, leaves))
        return cls(number, rank, address(graph.backend.handle), nodes)

    def varies(self, source: Source) -> bool:
        """Whether it reads neither a weight nor nothing."""
        root = source.root
        return root.data != ffi.NULL and (source.root_address in self._written or not is_weight(root))

    def pair(self, other: RankRun) -> None:
        """Give the nodes their twins in another graph, and list those of both that have none."""
        for mine, theirs in paired(self.nodes, other.nodes):
            mine.twin = theirs
        taken = {id(node.twin) for node in self.nodes}
        self.only_here = [node for node in self.nodes if node.twin is None]
        self.only_there = [node for node in other.nodes if id(node) not in taken]


class _Names:
    """Where nodes of one graph come from; nodes are asked for in the graph's order."""

    def __init__(self) -> None:
        self._signatures: dict[int, int] = {}
        self._leaves: dict[int, tuple[str, ...]] = {}

    def signature(self, tensor: Any) -> int:
        """Equal where all that leads to a node is equal."""
        at = address(tensor)
        if at not in self._signatures:
            view, above = View.of(tensor), map(self.signature, sources_of(tensor))
            facts = (operation(tensor), view.type, view.ne, view.offset, _leaf_name(tensor), *above)
            self._signatures[at] = hash(facts)
        return self._signatures[at]

    def leaves(self, tensor: Any) -> tuple[str, ...]:
        """Names of the weights that a node reads, and of those that its first source comes from."""
        at = address(tensor)
        if at not in self._leaves:
            first, *others = sources_of(tensor) or [None]
            direct = [_leaf_name(root) for root in map(root_of, others) if is_weight(root)]
            above = (_leaf_name(tensor),) if first is None else self.leaves(first)
            self._leaves[at] = (*filter(None, direct), *above)
        return self._leaves[at]


def _leaf_name(tensor: Any) -> str:
    """Empty where ggml numbered it."""
    is_leaf = tensor.op == lib.GGML_OP_NONE and tensor.view_src == ffi.NULL
    name = name_of(tensor) if is_leaf else ""
    return "" if name.startswith("leaf_") else name


def paired(ours: Sequence[Node], theirs: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Nodes that do the same: first those with all the same above them, then by order, then what changed places."""
    if [node.key for node in ours] == [node.key for node in theirs]:
        return list(zip(ours, theirs))
    by_signature = _by(theirs, [node.signature for node in theirs])
    pairs = [(a, by_signature[a.signature].pop(0)) for a in ours if by_signature[a.signature]]
    ours, theirs = _left(ours, theirs, pairs)
    matcher = difflib.SequenceMatcher(None, [a.key for a in ours], [b.key for b in theirs], autojunk=False)
    for i, j, n in matcher.get_matching_blocks():
        pairs += zip(ours[i : i + n], theirs[j : j + n])
    ours, theirs = _left(ours, theirs, pairs)
    by_key, n_ours = _by(theirs, [b.key for b in theirs]), Counter(a.key for a in ours)
    same = {key for key, nodes in by_key.items() if len(nodes) == n_ours[key]}
    return pairs + [(a, by_key[a.key].pop(0)) for a in ours if a.key in same]


def _by(nodes: Sequence[Node], keys: Sequence[Hashable]) -> defaultdict[Any, list[Node]]:
    groups: defaultdict[Any, list[Node]] = defaultdict(list)
    for key, node in zip(keys, nodes):
        groups[key].append(node)
    return groups


def _left(
    ours: Sequence[Node], theirs: Sequence[Node], pairs: Sequence[tuple[Node, Node]]
) -> tuple[list[Node], list[Node]]:
    taken = {id(node) for pair in pairs for node in pair}
    return [a for a in ours if id(a) not in taken], [b for b in theirs if id(b) not in taken]
