"""What ranks hold against what was planned for them, on any devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pyggml as gg
from pyggml.engine import LLM
from pyggml.engine.arrangement import cache_facts, deal_model
from pyggml.engine.device_facts import device_facts
from pyggml.engine.fit import placements
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.loading import model_facts

ALIKE = ("device", "n_ctx", "n_slots", "replicated_bytes", "layers", "heads", "n_head_kv")


def check_bytes(path: Path, **options: Any) -> None:
    """Weights and cache of each rank are within 2 % of the plan, results at most a tenth above it."""
    with LLM(path, **options) as llm:
        asked, devices = LoadOptions(**options), [gg.device(p.device) for p in llm.plan]
        model, cache = model_facts(llm.model), cache_facts(asked, llm.model.hparams)
        facts = device_facts(devices, model, cache)
        planned = placements(model, deal_model(model, asked, facts).demands, cache, llm.n_ctx)
        for real, paper in zip(llm.plan, planned, strict=True):
            told = f"really {real}; planned {paper}"
            assert real.weights_bytes + real.mapped_bytes == pytest.approx(paper.weights_bytes, rel=0.02), told
            assert real.cache_bytes == pytest.approx(paper.cache_bytes, rel=0.02), told
            assert real.compute_bytes <= 1.1 * paper.compute_bytes, told
            assert [getattr(real, name) for name in ALIKE] == [getattr(paper, name) for name in ALIKE]
