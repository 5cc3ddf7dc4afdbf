"""How long a comparison will take, so that it fits a limited time on a machine: rough, from sizes and speeds seen."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from modes import Mode

# Prefill and decode tokens a second of one H200 and file sizes in GB.
SEEN = {
    "llama-8b:q8_0": (10000, 240, 8.5),
    "llama-8b:q4_k": (9500, 270, 4.8),
    "qwen3-30b-a3b:q4_k": (9500, 230, 17.4),
    "llama-70b:q4_k": (1240, 48, 40.2),
}
LOAD_GB_S, START_S = 3.0, 4.0
WRITE_GB_S = 1.0


class Budget:
    """The time that is left, and what each model and mode will need."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._start = time.monotonic()

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return float(self._options.seconds) - self.spent_s

    def allows(self, seconds: float) -> bool:
        """Whether so much is left."""
        return seconds <= self.left_s

    def total(self, modes: Sequence[Mode]) -> float:
        """Seconds of everything, writing the models included."""
        found = 0.0
        for name in self._options.models:
            path = Path(self._options.folder) / f"{name.replace(':', '-')}.gguf"
            if name in SEEN and not path.exists():
                found += SEEN[name][2] / WRITE_GB_S
            found += sum(self.seconds(name, str(path) if name in SEEN else name, mode) for mode in modes)
        return found

    def seconds(self, name: str, path: str, mode: Mode) -> float:
        """Seconds of one model in one mode, both sides together."""
        o, size = self._options, Path(path).stat().st_size / 1e9 if Path(path).exists() else 0.0
        prefill, decode, size = SEEN.get(name, (20000 / max(size, 1), 600 / max(size, 1), size))
        if o.layers:
            size /= 10
        n_sides = 1 if o.ours_only or mode.their_flags is None else 2
        runs = n_sides * o.rounds * (o.repeat + 1)
        loading = size / LOAD_GB_S + START_S
        n_loads = n_sides * o.rounds
        found = 0.0
        if "prefill" in o.what:
            found += runs * sum(o.p) / prefill
        if "decode" in o.what:
            found += runs * o.n / decode
        if "prefill" in o.what or "decode" in o.what:
            both = "prefill" in o.what and "decode" in o.what  # llama-bench has a process for each
            found += (n_loads + (o.rounds if both and n_sides == 2 else 0)) * loading
        if "parallel" in o.what:
            each = sum(n * o.parallel_prompt / prefill + (1 + 0.1 * n) * o.n / decode for n in o.parallel)
            found += runs * each + n_loads * loading
        if "streams" in o.what:
            each = sum(n * o.parallel_prompt / prefill + (1 + 0.1 * n) * o.n / decode for n in o.streams)
            found += n_sides * (loading + 5 + (o.rounds * o.repeat + 1) * each)
        return found
