"""Which runs of nodes are computed at once: found on laid-out graphs, without a CUDA device."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
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


def computed(g: gg.Graph, *shape: int) -> gg.Tensor:
    return gg.silu(g.input(f"z{len(shape)}", shape))


def test_what_is_read_early_is_no_nodes_result() -> None:
    """Kernels read weights while those before them still run."""
    with gg.Graph(cpu()) as g:
        x = g.input("x", (1, 512))
        g.output("by a norm", gg.mul_mat(matrix(g, 96, 512, "q8_0", 2), gg.rms_norm(x, 1e-5) * computed(g, 512)))
        hidden = norm(g, x)
        g.output("router", gg.mul_mat(computed(g, 96, 512), hidden))
        g.output("hidden", hidden * 2.0)
        g.output("kept", x * 2.0)
        g.build()
        found = [(n, fused) for n, fused in matches(g) if fused is not None]
    assert [n for n, _ in found] == [1]  # the product alone, with what another node has normed


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


def attention_of(case: Case) -> tuple[bool, bool]:
    """Whether the one run of a layer's part ends with attention, and whether our attention is taken."""
    with gg.Graph(cpu()) as g:
        build(g, case)
        g.build()
        (fused,) = [fused for _, fused in matches(g) if fused is not None]
        return fused.heads.attention != ffi.NULL, bool(lib.pg_fuse_attends(fused))


@pytest.mark.parametrize(
    "kind",
    ["", "-qk-three", "-sinks-twelve", "-outside", "-yarn-factors", "-capped", "-one-mask", "-written-later"],
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_attention_of_one_token_a_sequence_is_part_of_the_run(kind: str, head_dim: int) -> None:
    case = Case("heads-attends" + kind, n=3, head_dim=head_dim, is_neox=True)
    assert attention_of(case) == (True, True)
    assert attention_of(replace(case, n=1)) == (True, True)


@pytest.mark.parametrize(
    "case",
    [
        Case("heads-attends", head_dim=96),
        Case("heads-attends", head_dim=256),  # slower
        Case("heads-attends-part", head_dim=64, is_neox=True),
        Case("heads-attends", n_kv=384),
        Case("heads-attends-second-head"),
        Case("heads-attends-shared-rows", n=2),
        Case("heads-attends-two-tokens"),
    ],
    ids=str,
)
def test_other_attention_stays_with_ggml(case: Case) -> None:
    assert attention_of(case) == (False, False)


@pytest.mark.parametrize(
    "kind", ["heads-qk-wide", "heads-attends-qk-wide", "heads-one-table", "heads-attends-one-table"]
)
def test_heads_that_are_normed_or_stored_together_stay_with_ggml(kind: str) -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case(kind))
        g.build()
        assert not any(fused.has_heads for _, fused in matches(g) if fused is not None)


def test_a_window_that_is_no_whole_number_of_the_clusters_rows_stays_with_ggml() -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case("heads-attends"))
        g.build()
        (fused,) = [fused for _, fused in matches(g) if fused is not None]
        assert lib.pg_fuse_attends(fused)
        for operand in (1, 2, 3):
            moved = fused.heads.attention.src[operand]
            moved.ne[0 if operand == 3 else 1] = 100
        assert not lib.pg_fuse_attends(fused)


@pytest.mark.parametrize("name", ["positions", "rows", "mask"])
def test_attention_that_would_write_over_what_it_reads_stays_with_ggml(name: str) -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case("heads-attends"))
        g.build()
        nodes = [lib.ggml_graph_node(g._graph, i) for i in range(g.n_nodes)]
        (seen,) = [node for node in nodes if op_name(node) == "FLASH_ATTN_EXT"]
        seen.data = g._inputs[name].data
        (fused,) = [fused for _, fused in matches(g) if fused is not None]
        assert fused.has_heads and fused.heads.attention == ffi.NULL


@pytest.mark.parametrize("kind", ["kept-q", "twice-q", "written-before", "written-beside"])
@pytest.mark.parametrize("n", [1, 3])
def test_where_q_or_the_cache_is_anothers_too_heads_are_one_run_still(kind: str, n: int) -> None:
    """Q is read elsewhere; rows of earlier tokens are asked for before earlier nodes have ended."""
    with gg.Graph(cpu()) as g:
        build(g, Case(f"heads-attends-{kind}", n=n))
        g.build()
        (fused,) = [fused for _, fused in matches(g) if fused is not None]
        assert fused.has_heads and fused.heads.attention == ffi.NULL


def test_a_card_without_clusters_attends_by_ggml() -> None:
    with gg.Graph(cpu()) as g:
        build(g, Case("heads-attends"))
        g.build()
        (fused,) = [fused for _, fused in matches(g, may_attend=False) if fused is not None]
        assert fused.has_heads and fused.heads.attention == ffi.NULL


@pytest.mark.parametrize(
    ("case", "is_ours"),
    [
        (Case("heads-attends", n_kv=4096), True),
        (Case("heads-attends", n_kv=4352), False),
        (Case("heads-attends-twelve", n_kv=512), True),
        (Case("heads-attends-twelve", n_kv=768), False),  # many heads of Q on one of K
        (Case("heads-attends", n=16), True),
        (Case("heads-attends-twelve", n=16), False),  # in two parts
    ],
    ids=str,
)
def test_of_large_windows_and_many_sequences_ggmls_attention_is_the_faster(case: Case, is_ours: bool) -> None:
    assert attention_of(case) == (True, is_ours)


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
        assert lib.pg_fuse_match(g._graph, 0, 2, False, fused) == 0
        assert lib.pg_fuse_match(g._graph, 0, 3, False, fused) == 3


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


@pytest.mark.parametrize(
    ("setting", "is_on"), [(None, True), ("", True), ("0", False), ("all", True), ("types,router", True)]
)
def test_whether_any_are_taken(setting: str | None, is_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYGGML_FUSED")
    if setting is not None:
        monkeypatch.setenv("PYGGML_FUSED", setting)
    assert are_kernels_on() == is_on


@pytest.mark.parametrize("setting", ["on", "products, columns", "routers"])
def test_unknown_kernels_are_refused_by_name(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_FUSED", setting)
    with pytest.raises(gg.DeviceError, match=f"PYGGML_FUSED={setting}: no kernels are called .*products, columns"):
        are_kernels_on()


def test_both_lists_of_kernels_are_the_same() -> None:
    header = (Path(__file__).resolve().parent.parent / "pyggml" / "native" / "fuse_parts.h").read_text()
    told = header[header.index("#include <string.h>") : header.index("#define")]
    assert set(KERNELS) <= set(re.findall(r"[a-z]+(?:-[a-z]+)?", told))
