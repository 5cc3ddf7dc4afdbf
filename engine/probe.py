"""What can be measured of an open model beside its answers. Made by LLM, on whose engine's thread it works."""

from __future__ import annotations

from .ceiling import decode_ceiling
from .engine import Engine
from .errors import RequestError
from .loading import LoadedModel
from .measuring import sums_by_transport
from .model import Model
from .runner import Runner
from .step_profile import StepProfile


class Probe:
    """Measurements of one open LLM; they wait for the step in flight and disturb no request."""

    def __init__(
        self, model: Model, loaded: LoadedModel, runner: Runner, engine: Engine, threads: int | None
    ) -> None:
        self._model, self._loaded, self._runner, self._engine = model, loaded, runner, engine
        self._threads = threads

    @property
    def max_tokens(self) -> int:
        """The most tokens of one prefill step on one device."""
        return self._runner.max_chunk

    def profile(self, *, n_tokens: int = 1, n_seq: int = 1, n_past: int = 0) -> StepProfile:
        """Where the time of one step goes: n_tokens for each of n_seq sequences that have n_past tokens.

        One token is a decode step, more are a prefill step of one sequence. Raises RequestError.
        """
        if n_tokens < 1 or n_past < 0 or n_seq < 1 or (n_tokens > 1 and n_seq > 1):
            raise RequestError(
                f"a step of {n_tokens} tokens of {n_seq} sequences after {n_past}; a decode step takes one token "
                "of each sequence, a prefill step the tokens of one"
            )
        cache = self._loaded.ranks.cache
        n_ctx = self._loaded.n_ctx
        if n_tokens > self._runner.max_chunk or n_seq > cache.n_slots or n_tokens + n_past > n_ctx:
            raise RequestError(
                f"a step of {n_tokens} tokens of {n_seq} sequences after {n_past} does not fit: at most "
                f"{self._runner.max_chunk} tokens, {cache.n_slots} sequences and a context of {n_ctx}"
            )
        return self._engine.call(lambda: self._runner.profile(n_tokens, n_seq, n_past))

    def sums(self) -> dict[str, dict[int, float]]:
        """Seconds of one sum over the ranks by transport and number of elements; empty for a single rank."""
        group = self._loaded.ranks.group
        return {} if group is None else self._engine.call(lambda: sums_by_transport(group))

    def replays(self) -> dict[str, int]:
        """Decode plans by what becomes of their launches: `recorded`, `waiting`, `off`, or why they were refused."""
        return dict(self._engine.call(lambda: self._runner.replays))

    def decode_ceiling(self, n_seq: int, n_kv: int) -> float:
        """Tokens a second of n_seq sequences that the devices' memory allows where the weights lie."""
        return decode_ceiling(self._model, self._loaded.placements, n_seq, n_kv, self._threads)
