"""Two graphs of a group walked in turns: each computes while the other's sums travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._ffi import ffi
from .cuda_module import cuda_api, why, words
from .errors import AllocationError, ShapeError
from .group_graph import GroupGraph
from .lifetime import Closable

if TYPE_CHECKING:
    from .group import Group


_LARGE = 1 << 20  # numbers of a sum


class Turns(Closable):
    """Runs pairs of a group's graphs, on CUDA cards with a stream beside each rank's for the sums.

    Both graphs of a pair have memory of their own (Graph(allocator=...)); each segment of the second may read what the
    same segment of the first has written. Raises AllocationError.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._sides: list[Any] = []
        self._open(group.backends[0].lock)
        api = cuda_api() if all(b.device.module == "cuda" for b in group.backends) else None
        for backend in group.backends:
            if api is None:
                break
            reason = why()
            side = api.side_new(backend.handle, reason, len(reason))
            if side == ffi.NULL:
                self.close()
                raise AllocationError(f"{backend.device.name}: no stream beside its own: {words(reason)}")
            self._sides.append(side)

    @staticmethod
    def are_possible(group: Group) -> bool:
        """Whether large sums of a group travel by themselves."""
        return not group.is_serial and group.transports.name_for(_LARGE) != "host"

    def post(self, first: GroupGraph, second: GroupGraph) -> None:
        """Begin a run of both; first.finish() waits for it, and fills the results of both.

        Raises ShapeError for graphs of another group, or where only one of them has a rank's part.
        """
        if first.group is not self._group or second.group is not self._group:
            raise ShapeError("graphs that take turns belong to one group; build both on it")
        with self._group.turn():
            self.check_open()
            first.check_feeds()
            second.check_feeds()
            runs = first.beside(second, self._sides)
            self._group.post((first, second), runs)
            first.note_in_turns(runs)

    def _release(self) -> None:
        api = cuda_api()
        while self._sides:
            assert api is not None, "streams beside others are the CUDA module's"
            api.side_free(self._sides.pop())
