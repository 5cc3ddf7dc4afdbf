"""A radix tree over token ids: who holds how much of a sequence.

Holders (slots, files) each hold one sequence. The tree knows nothing of what they are or of time. Nodes where sequences
part are kept apart and count how often it happened, which tells shared beginnings, such as system prompts, from
conversations that only grow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
T = TypeVar("T", bound=Hashable)


def n_common(a: Ids, b: Ids) -> int:
    """The length of the common beginning."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class _Node:
    __slots__ = ("children", "ends", "ids", "n_partings", "parent")

    def __init__(self, ids: Ids, parent: _Node | None) -> None:
        self.ids = ids
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.ends: set[Hashable] = set()
        self.n_partings = 0

    def holders(self) -> Iterator[Hashable]:
        """All that hold this node's tokens and those before."""
        nodes = [self]
        while nodes:
            node = nodes.pop()
            yield from node.ends
            nodes.extend(node.children.values())


class PrefixTree:
    """The sequences of all holders. Not thread-safe."""

    def __init__(self) -> None:
        self._root = _Node(np.empty(0, np.int32), None)
        self._end: dict[Hashable, _Node] = {}
        self._length: dict[Hashable, int] = {}

    def length(self, holder: Hashable) -> int:
        """Tokens that a holder holds."""
        return self._length.get(holder, 0)

    def hold(self, holder: Hashable, ids: Ids) -> None:
        """Let a holder hold this sequence, in place of what it held."""
        before = self._end.pop(holder, None)
        if len(ids):
            node = self._path_to(ids)
            node.ends.add(holder)
            self._end[holder], self._length[holder] = node, len(ids)
        else:
            self._length.pop(holder, None)
        if before is not None and before is not self._end.get(holder):
            before.ends.discard(holder)
            self._prune(before)

    def drop(self, holder: Hashable) -> None:
        """Forget a holder."""
        self.hold(holder, self._root.ids)

    def cut(self, holder: Hashable, length: int) -> None:
        """Let a holder hold only its first `length` tokens."""
        if length < self.length(holder):
            self.hold(holder, self.ids(holder)[:length])

    def ids(self, holder: Hashable) -> Ids:
        """The sequence of a holder."""
        parts = []
        node = self._end.get(holder)
        while node is not None:
            parts.append(node.ids)
            node = node.parent
        return np.concatenate(parts[::-1]) if parts else self._root.ids

    def common(self, ids: Ids) -> dict[Hashable, int]:
        """How many of these tokens each holder begins with."""
        found: dict[Hashable, int] = {}
        node, depth = self._root, 0
        while True:
            following = node.children.get(int(ids[depth])) if depth < len(ids) else None
            found |= dict.fromkeys(node.ends, depth)
            for child in node.children.values():
                if child is not following:
                    found |= dict.fromkeys(child.holders(), depth)
            if following is None:
                return found
            n = n_common(following.ids, ids[depth:])
            depth += n
            if n < len(following.ids):
                return found | dict.fromkeys(following.holders(), depth)
            node = following

    def part(self, ids: Ids) -> int:
        """Note that a sequence leaves those in the tree behind these tokens; how many have done so by now.

        Not counted, and 0, where no holder goes on behind them.
        """
        node, depth = self._walk(ids)
        if depth < len(ids) or not node.children:
            return 0
        node.n_partings += 1
        return node.n_partings

    def _walk(self, ids: Ids) -> tuple[_Node, int]:
        """The node at the end of what the tree has of a sequence, split off if need be, and its depth."""
        node, depth = self._root, 0
        while depth < len(ids):
            following = node.children.get(int(ids[depth]))
            if following is None:
                break
            n = n_common(following.ids, ids[depth:])
            depth += n
            if n < len(following.ids):
                return self._split(following, n), depth
            node = following
        return node, depth

    def _path_to(self, ids: Ids) -> _Node:
        node, depth = self._walk(ids)
        if depth == len(ids):
            return node
        leaf = _Node(ids[depth:].copy(), node)
        node.children[int(ids[depth])] = leaf
        return leaf

    def _split(self, node: _Node, n: int) -> _Node:
        """Put a node for the first n tokens of this one above it."""
        parent = node.parent
        assert parent is not None, "the root is never split"
        upper = _Node(node.ids[:n], parent)
        parent.children[int(node.ids[0])] = upper
        upper.children[int(node.ids[n])] = node
        node.ids, node.parent = node.ids[n:], upper
        return upper

    def _prune(self, node: _Node) -> None:
        """Remove nodes that nobody holds, and join what needs no parting any more."""
        while node.parent is not None and not node.ends and not node.children:
            del node.parent.children[int(node.ids[0])]
            node = node.parent
        if node.parent is None or node.ends or node.n_partings or len(node.children) != 1:
            return
        (child,) = node.children.values()
        child.ids = np.concatenate([node.ids, child.ids])
        child.parent = node.parent
        node.parent.children[int(node.ids[0])] = child

    def n_nodes(self) -> int:
        """Nodes below the root."""
        nodes, n = [self._root], -1
        while nodes:
            node = nodes.pop()
            n += 1
            nodes.extend(node.children.values())
        return n
