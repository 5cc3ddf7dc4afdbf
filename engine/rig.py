"""A model set up to run: its ranks, the runner over them, and the rows of their slots. It can be set up anew.

Knows nothing of requests. Made in the caller's thread, then used by the engine's alone.
"""

from __future__ import annotations

import os

from .batch_size import open_runner
from .errors import ConfigError
from .load_options import LoadOptions
from .loading import LoadedModel
from .model import Model
from .prefix_store import PrefixStore, file_identity
from .slot_rows import RankRows
from .weights import Progress


class Rig:
    """What one model needs to run. The model is closed with it.

    Beginnings of prompts are kept in `prefix_dir`, where one is given. Raises as LLM does.
    """

    def __init__(
        self,
        model: Model,
        options: LoadOptions,
        progress: Progress | None = None,
        *,
        prefix_dir: str | os.PathLike[str] | None = None,
        prefix_bytes: int = 0,
    ) -> None:
        self._model = model
        self.loaded = LoadedModel(model, options, progress)
        try:
            self.runner = open_runner(self.loaded.ranks, model.hparams, model.family, options.batch)
            store = None if prefix_dir is None else self._store(prefix_dir, prefix_bytes)
            self.rows = RankRows(self.loaded.ranks, store)
        except BaseException:
            self.loaded.close()
            raise

    def _store(self, folder: str | os.PathLike[str], max_bytes: int) -> PrefixStore:
        """The files of this model in this layout; the rows of another never fit."""
        ranks = self.loaded.ranks
        identity = file_identity(self._model.file.paths, RankRows.layout(ranks), ranks.reduce_dtype)
        row_bytes = [n for rank in ranks.ranks for n in rank.cache.row_bytes()]
        try:
            return PrefixStore(folder, identity, row_bytes, max_bytes)
        except OSError as error:
            raise ConfigError(f"prefix-cache-dir {os.fspath(folder)!r} cannot be used: {error}") from error

    def rebuild(self) -> None:
        """Set up anew after a fault broke the ranks; what slots held is lost."""
        self.runner.close()
        self.loaded.rebuild()
        self.runner.use(self.loaded.ranks)
        self.rows.use(self.loaded.ranks)

    def close(self) -> None:
        """Free everything; the runner is closed by whoever uses it."""
        self.rows.close()
        self.loaded.close()
        self._model.close()
