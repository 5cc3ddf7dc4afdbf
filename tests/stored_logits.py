"""llama.cpp's logits for tiny models, as `reference/make_tiny_logits.py` stored them in `golden/`.

Each case names a model that `write_tiny` can write, the cache's types, and the logits of some rows of PROMPT, once
evaluated all at once and once token by token. `floor` is how far llama.cpp moves from itself when only the order of
its arithmetic changes (other chunks, plain instead of repacked weights, norm weights moved by one ulp).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).with_name("golden")
PROMPT = (
    72,
    101,
    261,
    9,
    300,
    33,
    84,
    258,
    10,
    257,
    117,
    115,
    281,
    4,
    310,
    200,
    32,
    32,
    265,
    91,
    290,
    7,
    255,
    46,
)
ROWS = (3, 9, 16, 23)


@dataclass(frozen=True)
class StoredCase:
    """One model with its reference logits, float32 [len(ROWS), n_vocab]."""

    arch: str
    variant: str
    quant: str
    seed: int
    flash: bool
    cache_type: str
    floor: float
    whole: np.ndarray
    steps: np.ndarray

    @property
    def name(self) -> str:
        """A label for test ids."""
        cache = "" if self.cache_type == "f32" and not self.flash else f"fa-{self.cache_type}"
        return "-".join(filter(None, (self.arch, self.variant, self.quant, cache)))

    @property
    def tolerance(self) -> float:
        """The normalised mean squared error that an equal computation stays below."""
        return max(1e-10, 10 * self.floor)


def stored_cases(arch: str) -> list[StoredCase]:
    """All stored cases of a family."""
    with np.load(FOLDER / f"tiny_{arch}.npz") as file:
        described = json.loads(bytes(file["cases"]))
        return [
            StoredCase(whole=file[f"{i}/whole"], steps=file[f"{i}/{case.pop('steps')}"], **case)
            for i, case in enumerate(described)
        ]
