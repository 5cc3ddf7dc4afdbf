"""Which products with chosen experts are computed at once: found on laid-out graphs, without a CUDA device."""

from __future__ import annotations

import pytest
from expert_graphs import Experts, build, build_as_models_do
from fused_graphs import matches
from graphs import cpu, random

import pyggml as gg

USED = 4


@pytest.fixture(autouse=True)
def take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not measured yet."""
    monkeypatch.setenv("PYGGML_FUSED", "all")


def n_taken(g: gg.Graph) -> list[int]:
    """How many nodes each run of experts has."""
    g.build()
    return [n for n, fused in matches(g) if fused is not None and fused.is_experts]


# Products, gate, weights, a view of each and all sums but one, which is one less.
N_NODES = 5 + USED + USED - 1


@pytest.mark.parametrize("kind", ["swiglu", "geglu", "swiglu-up-first"])
@pytest.mark.parametrize("kind_of_weights", ["q8_0", "q4_k", "q5_k", "q6_k", "q4_0", "q4_1", "mxfp4"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_experts_are_one_run(kind: str, kind_of_weights: str, n: int) -> None:
    with gg.Graph(cpu()) as g:
        build(g, Experts(kind, n, USED, type=kind_of_weights))
        assert n_taken(g) == [N_NODES]


@pytest.mark.parametrize(
    ("case", "n_nodes"),
    [
        (Experts("swiglu-residual"), N_NODES + 1),
        (Experts(down="q6_k"), N_NODES),
        (Experts(type="q8_0", n_ff=192), N_NODES),
        (Experts(used=1), 7),
        (Experts(n=8, used=8, n_experts=16), 5 + 8 + 7),
    ],
    ids=str,
)
def test_so_are_other_shapes(case: Experts, n_nodes: int) -> None:
    with gg.Graph(cpu()) as g:
        build(g, case)
        assert n_taken(g) == [n_nodes]


@pytest.mark.parametrize(
    "router", [{}, {"normalise": False}, {"kind": "sigmoid"}, {"kind": "chosen", "normalise": False}], ids=str
)
@pytest.mark.parametrize("n", [1, 3])
def test_models_have_such_runs(router: dict[str, object], n: int) -> None:
    with gg.Graph(cpu()) as g:
        build_as_models_do(g, Experts(n=n, used=USED), extra={}, **router)
        assert n_taken(g) == [N_NODES + 1]


@pytest.mark.parametrize("case", [Experts(n=9), Experts(type="f32"), Experts(down="q5_0")], ids=str)
def test_others_stay_with_ggml(case: Experts) -> None:
    with gg.Graph(cpu()) as g:
        build(g, case)
        assert n_taken(g) == []


@pytest.mark.parametrize("part", ["gate", "down"])
def test_biases_stay_with_ggml(part: str) -> None:
    case = Experts()
    with gg.Graph(cpu()) as g:
        bias = g.weight(random(case.n_experts, case.k if part == "down" else case.n_ff))
        build_as_models_do(g, case, extra={f"blk.0.ffn_{part}_exps.bias": bias})
        assert n_taken(g) == []


def test_weighted_inputs_stay_with_ggml() -> None:
    with gg.Graph(cpu()) as g:
        build_as_models_do(g, Experts(), extra={}, weighs_inputs=True)
        assert n_taken(g) == []


def test_hidden_that_are_read_elsewhere_are_not_left_out() -> None:
    case = Experts()
    with gg.Graph(cpu()) as g:
        matrices = case.matrices(g)
        ids = g.input("ids", (1, case.used), "i32")
        x = g.input("x", (1, 1, case.k))
        gate, up = (gg.mul_mat_id(matrices[name], x, ids) for name in ("gate", "up"))
        hidden = gg.swiglu(gate, up)
        each = gg.mul_mat_id(matrices["down"], hidden, ids) * g.input("weights", (1, case.used, 1))
        total = each[:, 0, :]
        for place in range(1, case.used):
            total = total + each[:, place, :]
        g.output("y", total)
        g.output("hidden", hidden * 2.0)
        assert n_taken(g) == []


@pytest.mark.parametrize(("setting", "n", "is_taken"), [
    (None, 1, True), (None, 2, False), ("products,columns", 1, False), ("experts-columns", 2, True),
])  # fmt: skip
def test_those_of_one_token_are_taken_unless_others_are_named(
    setting: str | None, n: int, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYGGML_FUSED")
    if setting is not None:
        monkeypatch.setenv("PYGGML_FUSED", setting)
    with gg.Graph(cpu()) as g:
        build(g, Experts(n=n))
        assert bool(n_taken(g)) == is_taken
