"""What both sides of a comparison do in a turn: one sequence at a time, or several together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from modes import Mode
from our_side import OurSide
from peer import parallel_speeds, speeds

Note = Callable[[str, str, int, dict[str, Any]], None]  # (side, what, n, found)


class Work(Protocol):
    """One kind of work. `room` is what our LLM needs for it, `profiles` are its steps as Probe.profile takes them.

    Every turn has a run more, the cold one, which is left out: it is a process of its own.
    """

    room: dict[str, int]
    profiles: list[dict[str, int]]

    def theirs(self, path: str, mode: Mode, n_runs: int, note: Note) -> None:
        """llama.cpp's turn."""

    def ours(self, side: OurSide, n_runs: int, n_cold: int, note: Note) -> None:
        """Our turn."""


class Alone:
    """Prompts of several lengths into an empty cache, and tokens of one sequence from an empty cache."""

    def __init__(self, prompts: Sequence[int], n_gen: int) -> None:
        self._prompts, self._n_gen = prompts, n_gen
        self.room = {"ctx": max(*prompts, n_gen + 2, 64) + 1, "parallel": 1}
        self.profiles = [{"n_tokens": max(prompts)}] if prompts else []
        self.profiles += [{"n_past": n_gen // 2}] if n_gen else []

    def theirs(self, path: str, mode: Mode, n_runs: int, note: Note) -> None:
        """One run of llama-bench."""
        assert mode.their_flags is not None, "theirs take part in this mode"
        found = speeds(path, mode.their_flags, mode.their_env, self._prompts, self._n_gen, n_runs)
        for what, n, runs in found:
            note("theirs", what, n, {"tok_per_s": runs})

    def ours(self, side: OurSide, n_runs: int, n_cold: int, note: Note) -> None:
        """Prompts, then tokens."""
        for n in self._prompts:
            note("ours", "prefill", n, side.ask(prefill=n, runs=n_runs, cold=n_cold))
        if self._n_gen:
            note("ours", "decode", self._n_gen, side.ask(decode=self._n_gen, runs=n_runs, cold=n_cold))


class Together:
    """Tokens of several sequences at once, each after a prompt of its own."""

    def __init__(self, n_prompt: int, n_gen: int, counts: Sequence[int]) -> None:
        self._n_prompt, self._n_gen, self._counts = n_prompt, n_gen, counts
        self.room = {"ctx": max(n_prompt + n_gen + max(counts), 63) + 1, "parallel": max(counts)}
        self.profiles = [{"n_seq": n, "n_past": n_prompt + n_gen // 2} for n in counts if n > 1]

    def theirs(self, path: str, mode: Mode, n_runs: int, note: Note) -> None:
        """One run of llama-batched-bench."""
        assert mode.their_flags is not None, "theirs take part in this mode"
        work = self._n_prompt, self._n_gen, self._counts, n_runs + 1
        for n, runs in parallel_speeds(path, mode.their_flags, mode.their_env, *work):
            note("theirs", "parallel", n, {"tok_per_s": runs[1:]})

    def ours(self, side: OurSide, n_runs: int, n_cold: int, note: Note) -> None:
        """Each number of sequences."""
        for n in self._counts:
            found = side.ask(decode=self._n_gen, parallel=n, prompt=self._n_prompt, runs=n_runs, cold=n_cold)
            note("ours", "parallel", n, found)
