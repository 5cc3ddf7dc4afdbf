"""Our attention of few tokens and ggml's against float64, on the same tensors in the same memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attention_graphs import AttentionCase, build_attention, right_attention
from fused_graphs import matches
from test_fused import api, compute_fused, nmse, poison, pytestmark, send

import pyggml as gg
from pyggml._ffi import ffi
from pyggml.cuda_module import why, words

__all__ = ["pytestmark"]
CASES = [
    *(AttentionCase(d, 8, 2, n, n_kv=n_kv) for d in (64, 128, 256) for n in (1, 2, 4, 8) for n_kv in (256, 4096)),
    *(AttentionCase(d, 6, 2, n) for d in (80, 96, 112) for n in (1, 3)),
    *(AttentionCase(128, 32, 8, n, n_seq) for n in (1, 4) for n_seq in (1, 2, 4, 16)),
    *(AttentionCase(128, 32, 8, n_kv=n_kv) for n_kv in (512, 1024, 2048, 8192, 32768)),
    *(AttentionCase(128, n_head, n_head_kv, 2, n_kv=1024) for n_head, n_head_kv in ((16, 1), (7, 7), (40, 8), (24, 1))),
    *(AttentionCase(d, 8, 4, 3, 2, 2048, kind)
      for d in (64, 128) for kind in ("window", "sinks", "window-sinks", "bare")),
    *(AttentionCase(d, 8, 4, n, n_kv=1024, kind="softcap") for d in (128, 256) for n in (1, 4)),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend() -> Iterator[gg.Backend]:
    with gg.Backend("cuda:0") as opened:
        yield opened


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_as_near_as_ggmls_or_very_near(
    case: AttentionCase, backend: gg.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours multiplies in halves on tensor cores. Three times, since blocks count those that have ended in memory
    that stays.
    """
    with gg.Graph(backend) as g:
        inputs = build_attention(g, case)
        monkeypatch.setenv("PYGGML_FUSED", "0")
        theirs = g.run(**inputs)["y"]
        monkeypatch.setenv("PYGGML_FUSED", "all")
        found = matches(g)
        assert len(found) == 1 and found[0][1].attention != ffi.NULL
        right = right_attention(case, inputs)
        for _ in range(3):
            poison(g)
            send(g, inputs)
            ours = compute_fused(g, backend, found)["y"]
            print(f"{case}: ours {nmse(ours, right):.1e}, ggml's {nmse(theirs, right):.1e}")
            assert nmse(ours, right) <= 1e-11


def test_a_window_that_moves_and_one_that_grows(backend: gg.Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain, recorded and recorded anew: runs of one plan, as the engine has them."""
    monkeypatch.setenv("PYGGML_FUSED", "all")
    case = AttentionCase(128, 8, 2, n_kv=4096)
    with gg.Graph(backend) as g:
        inputs = build_attention(g, case)
        g.build()
        assert g.n_fused == 1
        for slot, n_kv in ((0, 256), (1, 256), (1, 512), (0, 4096), (1, 4096), (0, 256)):
            g.move(slot, n_kv)
            mask = inputs["mask"][..., -n_kv:]
            for _ in range(4):
                seen = g.run(q=inputs["q"], mask=mask)["y"]
                error = nmse(seen, right_attention(case, {"q": inputs["q"], "mask": mask}, slot=slot))
                assert error <= 1e-10, (slot, n_kv, g.replay)


def test_many_launches_behind_each_other_are_all_right(
    backend: gg.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may start while the one before runs, and all share the memory of parts."""
    monkeypatch.setenv("PYGGML_FUSED", "all")
    case, n_copies = AttentionCase(128, 8, 2, n_kv=2048), 40
    with gg.Graph(backend) as g:
        inputs = build_attention(g, case, n_copies=n_copies)
        g.build()
        runs = [fused for _, fused in matches(g) if fused is not None]
        assert len(runs) == n_copies
        for run in runs:
            run.is_before_ours = True
        poison(g)
        send(g, inputs)
        text = why()
        for _ in range(20):
            for run in runs:
                assert api.fuse_launch(run, backend.handle, text, len(text)), words(text)
        backend.synchronize()
        found = compute_fused(g, backend, [])
    for i in range(n_copies):
        assert nmse(found[f"y{i}"], right_attention(case, inputs, copy=i)) <= 1e-10
