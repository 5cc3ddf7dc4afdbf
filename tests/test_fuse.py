"""Which runs of nodes are computed at once: found on laid-out graphs, without a CUDA device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from attention_graphs import AttentionCase, build_attention, cached
from fused_graphs import Case, build, matches, matrix, norm, op_name
from graphs import cpu, random

import pyggml as gg
from pyggml._ffi import ffi, lib
from pyggml.cuda_module import KERNELS, are_kernels_on


@pytest.fixture(autouse=True)
def take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones too, which do not pay."""
    monkeypatch.setenv("PYGGML_FUSED", "all")


def taken(case: Case) -> list[int]:
    with gg.Graph(cpu()) as g:
        build(g, case)
        g.build()
        return [n for n, fused in matches(g) if fused is not None]


@pytest.mark.parametrize(
    ("kind", "n_nodes"),
    [
        ("alone", 1),
        ("normed", 3),
        ("added-normed", 4),
        ("bias", 2),
        ("residual", 2),
        ("bias-residual", 3),
        ("normed-gate", 5),
        ("added-normed-gate-gelu", 6),
    ],
)
@pytest.mark.parametrize("kind_of_weights", ["q8_0", "q4_k", "q5_k", "q6_k", "q4_0", "q4_1", "mxfp4"])
@pytest.mark.parametrize("n", [1, 2, 16])
def test_products_take_what_is_around_them(kind: str, n_nodes: int, kind_of_weights: str, n: int) -> None:
    assert taken(Case(kind, n=n, type=kind_of_weights)) == [n_nodes]


@pytest.mark.parametrize(
    "kind", ["heads", "added-heads", "heads-qk", "heads-bias", "heads-yarn-factors", "heads-mixed"]
)
@pytest.mark.parametrize("n", [1, 5, 16])
def test_attention_inputs_are_one_run_up_to_the_cache(kind: str, n: int) -> None:
    with gg.Graph(cpu()) as g:
        # As models do, K and V are stored before anything reads Q.
        build(g, Case(kind, n=n))
        g.build()
        runs = [fused for _, fused in matches(g) if fused is not None]
    assert len(runs) == 1 and runs[0].has_heads


@pytest.mark.parametrize(
    "case",
    [
        Case("alone", n=17),
        Case("alone", type="f32"),
        Case("alone", type="q5_0"),
        Case("alone", rows=15),
        Case("alone", k=96),
    ],
    ids=str,
)
def test_others_stay_with_ggml(case: Case) -> None:
    assert taken(case) == []


@pytest.mark.parametrize(("kind", "n_nodes"), [("normed-router", 3), ("added-normed-router", 4)])
@pytest.mark.parametrize("n", [1, 4])
def test_a_routers_input_is_left_for_its_experts(kind: str, n_nodes: int, n: int) -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case(kind, n=n, k=2048, rows=128, type="f32"))
        g.build()
        runs = [(n_taken, fused.products.normed) for n_taken, fused in matches(g) if fused is not None]
    assert [n_taken for n_taken, _ in runs] == [n_nodes] and runs[0][1] != ffi.NULL


def test_large_matrices_of_float32_stay_with_ggml() -> None:
    assert taken(Case("normed-router", rows=1025, type="f32")) == []


def test_several_columns_may_have_any_length() -> None:
    assert taken(Case("residual", n=3, k=40960, rows=32)) == [2]


def test_a_value_that_is_read_elsewhere_is_not_left_out() -> None:
    with gg.Graph(cpu()) as g:
        x = norm(g, g.input("x", (1, 256)))
        g.output("y", gg.mul_mat(g.weight(random(32, 256), type="q8_0"), x))
        g.output("hidden", x * 2.0)
        g.build()
        assert [n for n, fused in matches(g) if fused is not None] == [1]


def test_an_output_in_the_middle_is_not_left_out() -> None:
    with gg.Graph(cpu()) as g:
        x = g.output("hidden", norm(g, g.input("x", (1, 256))))
        g.output("y", gg.mul_mat(g.weight(random(32, 256), type="q8_0"), x))
        g.build()
        assert [n for n, fused in matches(g) if fused is not None] == [1]


def test_a_sum_of_other_shape_is_no_residual() -> None:
    with gg.Graph(cpu()) as g:
        y = gg.mul_mat(g.weight(random(32, 256), type="q8_0"), g.input("x", (2, 256)))
        g.output("y", y + g.input("one", (2, 1)))
        g.build()
        assert [n for n, fused in matches(g) if fused is not None] == [1]


def test_a_run_ends_where_it_is_told() -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case("normed"))
        g.build()
        fused = ffi.new("pg_fused *")
        assert lib.pg_fuse_match(g._graph, 0, 2, fused) == 0
        assert lib.pg_fuse_match(g._graph, 0, 3, fused) == 3


@pytest.mark.parametrize(
    ("case", "is_taken"),
    [
        (Case("normed"), True),
        (Case("normed", type="q4_0"), False),
        (Case("normed", n=2), True),
        (Case("normed-gate", n=16, k=256, rows=4096, type="q6_k"), True),
        (Case("normed-gate", n=16, k=256, rows=4096, type="q4_1"), False),
        (Case("normed-router", type="f32"), True),
    ],
    ids=str,
)
def test_only_what_was_seen_to_pay_is_taken(
    case: Case, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYGGML_FUSED")
    assert bool(taken(case)) == is_taken


def test_the_environment_switches_all_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_FUSED", "0")
    assert taken(Case("normed")) == []


ATTENTION = [
    AttentionCase(),
    *(AttentionCase(head_dim=d) for d in (80, 96, 112, 128, 256)),
    AttentionCase(n_head=7, n_head_kv=1, n=8, n_seq=3),
    *(AttentionCase(kind=kind) for kind in ("bare", "softcap", "sinks", "window-softcap-sinks")),
]
OTHER_ATTENTION = [
    AttentionCase(n=9),
    AttentionCase(head_dim=32),
    AttentionCase(head_dim=72),
    AttentionCase(kind="alibi"),
    AttentionCase(cache="q8_0"),
    AttentionCase(cache="f32"),
]


@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_is_a_run_with_the_views_around_it(case: AttentionCase) -> None:
    with gg.Graph(cpu()) as g:
        build_attention(g, case)
        g.build()
        (found,) = matches(g)
        assert found[0] == g.n_nodes and op_name(found[1].attention) == "FLASH_ATTN_EXT"


@pytest.mark.parametrize("case", OTHER_ATTENTION, ids=str)
def test_other_attention_stays_with_ggml(case: AttentionCase) -> None:
    with gg.Graph(cpu()) as g:
        build_attention(g, case)
        g.build()
        assert all(fused is None for _, fused in matches(g))


@pytest.mark.parametrize(
    ("setting", "is_taken"),
    [(None, False), ("1", False), ("0", False), ("products", False), ("products,attention", True), ("all", True)],
)
def test_attention_is_taken_only_where_it_is_named(
    setting: str | None, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYGGML_FUSED")
    if setting is not None:
        monkeypatch.setenv("PYGGML_FUSED", setting)
    with gg.Graph(cpu()) as g:
        build_attention(g, AttentionCase())
        g.build()
        assert all((fused is not None) == is_taken for _, fused in matches(g))


@pytest.mark.parametrize(
    ("setting", "case", "is_taken"),
    [
        ("products", Case("normed"), True),
        ("products", Case("normed", n=2), False),
        ("columns,types", Case("normed", n=2, type="q4_0"), True),
        ("columns,types", Case("normed"), False),
        ("more-columns", Case("normed", n=2), False),
        ("router", Case("normed-router", type="f32"), True),
        ("products,columns", Case("normed-router", type="f32"), False),
    ],
)
def test_the_environment_names_what_is_taken(
    setting: str, case: Case, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_FUSED", setting)
    assert bool(taken(case)) == is_taken


def test_a_run_of_attention_sees_its_window_move() -> None:
    """It holds the node, whose operands are changed in place."""
    case = AttentionCase(n_kv=256)
    with gg.Graph(cpu()) as g:
        build_attention(g, case)
        g.build()
        ((_, fused),) = matches(g)
        k = fused.attention.src[1]
        start = int(ffi.cast("size_t", k.data))
        g.move(0, 128)
        assert (k.ne[1], fused.attention.src[3].ne[0]) == (128, 128)
        g.move(1, 128)
        assert int(ffi.cast("size_t", k.data)) - start == (256 + 32) * 2 * 64 * 2


def test_a_layer_has_no_node_between_heads_attention_and_output() -> None:
    """So each of our launches may start while the one before runs."""
    case = AttentionCase(n_kv=32)
    with gg.Graph(cpu()) as g:
        x = norm(g, g.input("x", (1, 256)))
        positions, rows = g.input("positions", (1,), "i32"), g.input("rows", (1,), "i64")
        q, k = (
            gg.rope(gg.mul_mat(matrix(g, n * 64, 256, "q8_0", n), x).reshape(1, n, 64), positions, n_dims=64)
            for n in (4, 2)
        )
        v = gg.mul_mat(matrix(g, 128, 256, "q8_0", 5), x)
        tables = [
            gg.set_rows(g.state(name, (64, 128), "f16"), part.reshape(1, -1), rows)
            for name, part in (("k", k), ("v", v))
        ]
        mask = g.input("mask", (1, 1, 1, 32), "f16")
        seen = gg.flash_attn(
            q.reshape(1, 1, 4, 64).permute(0, 2, 1, 3),
            *(cached(g, t, case, 64) for t in tables),
            mask,
            scale=0.125,
        )
        g.output("y", gg.mul_mat(matrix(g, 256, 256, "q8_0", 6), seen.reshape(1, -1)))
        g.build()
        runs = [fused for _, fused in matches(g)]
    assert [None if r is None else (r.has_heads, bool(r.attention)) for r in runs] == [
        (True, False),
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("setting", "is_on"), [(None, True), ("", True), ("0", False), ("all", True), ("router,early", True)]
)
def test_whether_any_are_taken(setting: str | None, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYGGML_FUSED")
    if setting is not None:
        monkeypatch.setenv("PYGGML_FUSED", setting)
    assert are_kernels_on() == is_on


@pytest.mark.parametrize("setting", ["on", "products, columns", "attnetion"])
def test_unknown_kernels_are_refused_by_name(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_FUSED", setting)
    with pytest.raises(gg.DeviceError, match=f"PYGGML_FUSED={setting}: no kernels are called .*products, columns"):
        are_kernels_on()


def test_both_lists_of_kernels_are_the_same() -> None:
    header = (Path(__file__).resolve().parent.parent / "pyggml" / "native" / "fuse_parts.h").read_text()
    told = header[header.index("#include <string.h>") : header.index("#define")]
    assert set(KERNELS) <= set(re.findall(r"[a-z]+(?:-[a-z]+)?", told))
