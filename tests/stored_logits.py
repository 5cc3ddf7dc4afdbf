"""llama.cpp's logits as the scripts in `reference/` stored them in `golden/`: of tiny models and of two real ones.

Each tiny case names a model that `write_tiny` can write, the cache's types, and the logits of some rows of PROMPT, once
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
    """One model with its reference logits of every `step`th token, float32 [len(ROWS), n_vocab / step]."""

    arch: str
    variant: str
    quant: str
    seed: int
    flash: bool
    cache_type: str
    floor: float
    whole: np.ndarray
    steps: np.ndarray
    step: int = 1

    def picked(self, logits: np.ndarray) -> np.ndarray:
        """What is stored of all logits of PROMPT."""
        return logits[list(ROWS)][:, :: self.step]

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


@dataclass(frozen=True)
class StoredRows:
    """A part of a real model's logits for one prompt, evaluated in one way.

    `logits` are float32 [rows, columns] at real_rows and real_columns, `norms` those rows' sizes over the whole
    vocabulary, `best` the best token after every position.
    """

    logits: np.ndarray
    norms: np.ndarray
    best: np.ndarray


@dataclass(frozen=True)
class StoredReal:
    """A real model's logits: `weights` "original" or "F32", `cache_type` "f32" (plain) or "f16" (flash attention).

    `facts` tells how far llama.cpp moves from itself: NMSE and the share of best tokens that flip, step by step
    against all at once (`steps_*`) and with the norm weights moved by one ulp (`nudged_*`).
    """

    tokens: tuple[int, ...]
    weights: str
    cache_type: str
    whole: StoredRows
    steps: StoredRows
    facts: dict[str, float]


@dataclass(frozen=True)
class StoredGreedy:
    """A greedy continuation by a real model's F32 copy, with the gap between the two best logits at each step."""

    text: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    gaps: np.ndarray


def real_rows(n_tokens: int) -> list[int]:
    """The positions of a prompt whose logits are stored."""
    return [0, n_tokens // 3, 2 * n_tokens // 3, n_tokens - 1]


def real_columns(n_vocab: int) -> np.ndarray:
    """The 512 token ids whose logits are stored."""
    return np.arange(512, dtype=np.int64) * n_vocab // 512 + np.arange(512) % 7


def stored_real(model: str) -> list[StoredReal]:
    """All that is stored for "smollm2" or "gemma3"."""
    with np.load(FOLDER / f"real_{model}.npz") as file:
        tokens = tuple(int(token) for token in file["tokens"])

        def rows(prefix: str) -> StoredRows:
            return StoredRows(*(file[f"{prefix}/{kind}"] for kind in ("logits", "norms", "best")))

        return [
            StoredReal(
                tokens,
                weights,
                cache_type,
                whole=rows(f"{weights}/{cache_type}/whole"),
                steps=rows(f"{weights}/{cache_type}/steps"),
                facts=json.loads(bytes(file[f"{weights}/{cache_type}/facts"])),
            )
            for weights in ("original", "F32")
            for cache_type in ("f32", "f16")
        ]


def stored_greedy(model: str) -> list[StoredGreedy]:
    """The greedy continuations of "smollm2" or "gemma3"."""
    with np.load(FOLDER / f"greedy_{model}.npz") as file:
        return [
            StoredGreedy(prompt["text"], tuple(prompt["ids"]), tuple(map(int, ids)), gaps)
            for prompt, ids, gaps in zip(
                json.loads(bytes(file["prompts"])), file["ids"], file["gaps"], strict=True
            )
        ]
