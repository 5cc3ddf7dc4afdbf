"""How far logits are from llama.cpp's stored ones, on processors that round otherwise too.

Stored logits come from a processor without AMX. Its tiles add in another order, and where a rounded activation lies on
an edge that shows, in llama.cpp as in ours. What must be equal everywhere are logits from weights in the file's layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from stored_logits import PROMPT, StoredCase

import pyggml as gg
from pyggml.engine import LLM

HAS_TILES = Path("/proc/cpuinfo").exists() and "amx_tile" in Path("/proc/cpuinfo").read_text()
FAR = 1e-3  # more than rounding does to the logits of a tiny model


def nmse(ours: np.ndarray, right: np.ndarray) -> float:
    """Squared error over the squared size of what is right."""
    exact = right.astype(np.float64)
    return float(((ours - exact) ** 2).sum() / (exact**2).sum())


@contextmanager
def plain_layouts() -> Iterator[None]:
    """Leave weights as they lie in the file."""
    types = gg.Backend.buffer_types
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gg.Backend, "buffer_types", lambda backend: types(backend)[-1:])
        yield


def distance(case: StoredCase, opened: Callable[[], LLM], limit: float) -> float:
    """NMSE of the logits of PROMPT, the larger of all at once and token by token.

    Where it is above the limit and below what rounding explains, that of weights in the file's own layout.
    """
    found = _distance(case, opened)
    if not HAS_TILES or not limit < found < FAR:
        return found
    with plain_layouts():
        plain = _distance(case, opened)
    print(f"{case.name}: {found:.1e} from the stored logits, {plain:.1e} with weights as they are in the file")
    return plain


def _distance(case: StoredCase, opened: Callable[[], LLM]) -> float:
    with opened() as llm:
        whole, steps = (llm.score(PROMPT, logits=True, chunk=chunk) for chunk in (None, 1))
    return max(nmse(case.picked(whole), case.whole), nmse(case.picked(steps), case.steps))
