"""Rows of all ranks' caches, moved between slots and files."""

from __future__ import annotations

from collections.abc import Mapping

from .prefix_store import PrefixStore
from .prefix_tree import Ids
from .rank import Ranks


class RankRows:
    """The caches of all ranks, with a store of files or none. Engine thread only, between steps."""

    def __init__(self, ranks: Ranks, store: PrefixStore | None = None) -> None:
        self._store = store
        self.use(ranks)

    def use(self, ranks: Ranks) -> None:
        """Move rows of these ranks from now on."""
        self._caches = [rank.cache for rank in ranks.ranks]

    def copy(self, source: int, slot: int, start: int, stop: int) -> None:
        """Copy rows from one slot to another, on each device."""
        for cache in self._caches:
            cache.copy(source, slot, start, stop)

    def load(self, key: str, slot: int, start: int, stop: int) -> bool:
        """Put rows of a file into a slot; False where the file cannot be used."""
        parts = None if self._store is None else self._store.load(key, start, stop)
        if parts is None:
            return False
        for cache in self._caches:
            n = len(cache.row_bytes())
            cache.write(slot, start, parts[:n])
            parts = parts[n:]
        return True

    def save(self, slot: int, ids: Ids) -> None:
        """Begin to write the first rows of a slot to a file."""
        if self._store is not None:
            self._store.save(ids, [part for cache in self._caches for part in cache.read(slot, len(ids))])

    def saved(self) -> Mapping[str, Ids]:
        """Files found at the start or written since the last call."""
        return {} if self._store is None else self._store.ready()

    def close(self) -> None:
        """Finish writing files."""
        if self._store is not None:
            self._store.close()

    @property
    def files(self) -> tuple[int, int]:
        """The number of files and their bytes."""
        sizes = {} if self._store is None else dict(self._store.sizes)
        return len(sizes), sum(sizes.values())

    @staticmethod
    def layout(ranks: Ranks) -> list[tuple[object, ...]]:
        """What must be the same for rows to mean the same: each rank's layers and its tables' rows."""
        caches = ((tuple(rank.layers), rank.cache.types, tuple(rank.cache.row_bytes())) for rank in ranks.ranks)
        return [("rows", 1), *caches]
