"""The best of each row of logits, found on the card, are those that the host finds."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as gg
from pyggml import HAS_INF, HAS_NAN, NONE_LEFT

pytestmark = pytest.mark.skipif(not any(d.module == "cuda" for d in gg.devices()), reason="no CUDA device")

K = 64


def on_card(rows: np.ndarray, n_runs: int = 3) -> list[gg.Candidates]:
    """What several runs of one graph find, the last ones replayed."""
    with gg.Backend("cuda:0") as backend, gg.RankGraph(backend) as graph:
        logits = graph.input("x", rows.shape) * 1.0
        assert graph.choose("chosen", logits) is not None
        graph.output("logits", logits, lazy=True)
        found = []
        for _ in range(n_runs):
            graph.run(x=rows)
            got = gg.chosen_candidates(graph.results["chosen"])
            found.append(gg.Candidates(*(np.array(part) for part in got)))
        assert graph.replay == ("recorded", "")
        np.testing.assert_array_equal(graph.fetch("logits"), rows)
        return found


@pytest.mark.parametrize("n_vocab", [1, 63, 64, 65, 4095, 4096, 4097, 32000, 49152, 128256, 262208])
@pytest.mark.parametrize("kind", ["normal", "few values", "rising", "mostly banned"])
def test_the_card_finds_what_the_host_finds(n_vocab: int, kind: str) -> None:
    rng = np.random.default_rng(n_vocab)
    rows = rng.standard_normal((5, n_vocab)).astype(np.float32)
    if kind == "few values":
        rows = np.round(rows)
    elif kind == "rising":
        rows = np.sort(rows, axis=1)
    elif kind == "mostly banned":
        rows[rng.random(rows.shape) < 0.999] = -np.inf
        rows[:, 0] = 1.0
    right = gg.top_candidates(rows, [K] * 5, scale=[1.0] * 5)
    for got in on_card(rows):
        np.testing.assert_array_equal(got.found, right.found)
        for r, n in enumerate(right.found):
            np.testing.assert_array_equal(got.ids[r, :n], right.ids[r, :n])
            np.testing.assert_array_equal(got.values[r, :n], right.values[r, :n])
        np.testing.assert_allclose(got.logsumexp, right.logsumexp, rtol=1e-5)


def test_rows_that_cannot_be_used_are_told() -> None:
    rows = np.zeros((4, 9000), np.float32)
    rows[0, 8000], rows[1, 5000], rows[2] = np.nan, np.inf, -np.inf
    for got in on_card(rows):
        assert got.found.tolist() == [HAS_NAN, HAS_INF, NONE_LEFT, K]
        assert got.ids[3].tolist() == list(range(K))
