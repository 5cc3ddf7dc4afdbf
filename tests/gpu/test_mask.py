"""A causal mask made on the card is the one that the host would send."""

from __future__ import annotations

import numpy as np
import pytest

import pyggml as gg
from pyggml.engine.plan import fill_mask

pytestmark = pytest.mark.skipif(not any(d.module == "cuda" for d in gg.devices()), reason="no CUDA device")


@pytest.mark.parametrize("window", [0, 1, 300])
@pytest.mark.parametrize(("n_seq", "n_tokens", "n_kv"), [(1, 1, 256), (3, 1, 512), (1, 37, 768), (2, 512, 2304)])
def test_the_card_makes_the_mask_of_the_host(window: int, n_seq: int, n_tokens: int, n_kv: int) -> None:
    rng = np.random.default_rng(0)
    with gg.Backend("cuda:0") as backend, gg.RankGraph(backend) as graph:
        positions = graph.input("positions", (n_seq * n_tokens,), "i32")
        mask = graph.causal_mask("mask", positions, (n_seq, 1, n_tokens, n_kv), window)
        graph.let_move(mask, 3)
        graph.output("y", mask.cast("f32"))
        for _ in range(3):
            right = np.zeros((n_seq, n_tokens, n_kv), np.float16)
            at = np.zeros((n_seq, n_tokens), np.int32)
            for seq in range(n_seq):
                start, n = int(rng.integers(0, n_kv - n_tokens + 1)), int(rng.integers(1, n_tokens + 1))
                at[seq, :n] = np.arange(start, start + n)
                fill_mask(right[seq], start, n, window)
            got = graph.run(positions=at.reshape(-1))["y"].reshape(right.shape)
            np.testing.assert_array_equal(got, right.astype(np.float32))


def test_a_mask_of_a_late_layer_is_made_from_positions_that_nothing_else_reads_by_then() -> None:
    """Layers without rotation come last in some families; their mask is made when others have read the positions."""
    n, n_kv = 32, 256
    with gg.Backend("cuda:0") as backend, gg.RankGraph(backend) as graph:
        positions = graph.input("positions", (n,), "i32")
        x = gg.rope(graph.input("x", (n, 2, 64)), positions, n_dims=64)
        for i in range(6):  # results that take the memory of whatever is read no more
            x = gg.silu(x + float(i)) * 2.0
        graph.output("x", graph.do(x).reshape(-1).cont())
        mask = graph.causal_mask("mask", positions, (1, 1, n, n_kv))
        graph.output("y", mask.cast("f32"))
        right = np.zeros((n, n_kv), np.float16)
        fill_mask(right, 100, n, 0)
        rng = np.random.default_rng(0)
        for _ in range(3):
            got = graph.run(positions=np.arange(100, 100 + n), x=rng.standard_normal((n, 2, 64), np.float32))["y"]
            np.testing.assert_array_equal(got.reshape(n, n_kv), right.astype(np.float32))
