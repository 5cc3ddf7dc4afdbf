"""Graphs: built once and run many times, inputs, outputs, states, shared memory, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from graphs import cpu, random, stored

import pyggml as gg


@pytest.fixture
def g() -> Iterator[gg.Graph]:
    with gg.Graph(cpu()) as graph:
        yield graph


def test_the_example_of_the_documentation_runs() -> None:
    w = np.random.default_rng(0).random((32, 64)).astype("f4")
    with gg.Backend("cpu", threads=1) as be, gg.Graph(be) as g:
        x = g.input("x", (4, 64))
        weight = g.weight(w, type="q8_0")
        g.output("y", gg.silu(gg.rms_norm(x) @ weight.T))
        out = g.run(x=np.ones((4, 64), "f4"))["y"]
    h = stored(w, "q8_0").sum(-1)
    np.testing.assert_allclose(out, np.tile(h / (1 + np.exp(-h)), (4, 1)), rtol=1e-2)


def test_a_graph_is_built_once_and_run_many_times(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    assert [g.run(x=np.full(4, i))["y"][0] for i in range(5)] == [0, 2, 4, 6, 8]


def test_step_reads_feeds_and_fills_results_in_place(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    feed, result = g.feeds["x"], g.results["y"]
    for i in range(3):
        feed[:] = i
        assert g.step()["y"] is result
        assert result.tolist() == [2 * i] * 4


def test_run_returns_copies(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    first = g.run(x=np.ones(4))["y"]
    g.run(x=np.zeros(4))
    assert first.tolist() == [2] * 4


def test_feeds_and_results_cannot_be_replaced(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    for mapping in (g.feeds, g.results):
        with pytest.raises(TypeError):
            mapping["x"] = np.ones(4)


def test_start_and_wait_are_a_run_in_two_parts(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    g.start(x=np.ones(4))
    assert g.wait()["y"].tolist() == [2] * 4


def test_start_and_wait_go_in_pairs(g: gg.Graph) -> None:
    g.output("y", g.input("x", (4,)) * 2)
    with pytest.raises(gg.ComputeError, match="no run of this graph was started"):
        g.wait()
    g.start(x=np.ones(4))
    for again in (lambda: g.start(x=np.ones(4)), g.step, lambda: g.run(x=np.ones(4))):
        with pytest.raises(gg.ComputeError, match=r"call its wait\(\) first"):
            again()
    assert g.wait()["y"].tolist() == [2] * 4
    with pytest.raises(gg.ComputeError, match="no run of this graph was started"):
        g.wait()
    assert g.run(x=np.zeros(4))["y"].tolist() == [0] * 4


INPUTS = [
    ({}, r"inputs \[\] were given; the graph has \['i', 'x'\]"),
    ({"x": np.ones(4)}, r"inputs \['x'\] were given"),
    ({"x": np.ones(4), "i": [1], "z": 1}, r"inputs \['i', 'x', 'z'\] were given"),
    ({"x": np.ones(5), "i": [1]}, r"input 'x' has shape \(4,\); \(5,\) was given"),
    ({"x": np.ones((1, 4)), "i": [1]}, r"input 'x' has shape \(4,\); \(1, 4\) was given"),
    ({"x": 1.0, "i": [1]}, r"input 'x' has shape \(4,\); \(\) was given"),
    ({"x": np.ones(4) * 1j, "i": [1]}, "input 'x' takes numbers; complex128 was given"),
    ({"x": list("abcd"), "i": [1]}, "input 'x' takes numbers; <U1 was given"),
    ({"x": np.ones(4), "i": [1.5]}, "input 'i' is int32; float64 values that do not fit it were given"),
    ({"x": np.ones(4), "i": [2**31]}, "input 'i' is int32; int64 values that do not fit it were given"),
]


@pytest.mark.parametrize(("values", "words"), INPUTS, ids=[words for _, words in INPUTS])
def test_inputs_that_are_not_the_graphs_are_refused(
    g: gg.Graph, values: dict[str, object], words: str
) -> None:
    g.output("y", g.input("x", (4,)) + g.input("i", (1,), "i32").cast("f32"))
    with pytest.raises(gg.ShapeError, match=words):
        g.run(**values)
    assert g.run(x=np.ones(4), i=[3])["y"].tolist() == [4] * 4


@pytest.mark.parametrize(
    "value", [[1, 2, 3], np.array([1, 2, 3], np.int64), np.array([1, 2, 3], np.float64), range(1, 4)]
)
def test_numbers_of_any_kind_become_the_inputs_type(g: gg.Graph, value: object) -> None:
    g.output("y", g.input("x", (3,)) * 1)
    assert g.run(x=value)["y"].tolist() == [1, 2, 3]


def test_an_input_that_nothing_reads_must_still_be_given(g: gg.Graph) -> None:
    g.input("unused", (4,))
    g.output("y", g.input("x", (1,)) * 2)
    assert g.run(unused=np.ones(4), x=[1])["y"] == 2


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0"])
def test_outputs_of_float_types_come_as_float32(g: gg.Graph, kind: str) -> None:
    x = random(2, 64)
    g.output("y", g.input("x", x.shape).cast(kind))
    y = g.run(x=x)["y"]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, x, atol=0.03)


def test_every_named_node_is_read_back_also_those_in_the_middle(g: gg.Graph) -> None:
    x = g.input("x", (64,))
    for i in range(10):
        x = g.output(f"y{i}", x + 1)
    results = g.run(x=np.zeros(64))
    assert [results[f"y{i}"][0] for i in range(10)] == list(range(1, 11))


def test_an_output_that_is_a_view_keeps_its_memory(g: gg.Graph) -> None:
    """What the view looks at would be used again once the view's own reader is done."""
    x = g.input("x", (1024,))
    half = g.output("half", (x * 2).reshape(2, 512)[0])
    y = half + 1
    for _ in range(5):
        y = y * 3 + 1
    g.output("y", gg.concat(y, y, 0))
    assert g.run(x=np.ones(1024))["half"].tolist() == [2] * 512


def test_inputs_weights_and_states_can_be_outputs(g: gg.Graph) -> None:
    weight, state = g.weight(np.ones(3), name="w"), g.state("s", (3,))
    for name, tensor in (("x2", g.input("x", (3,))), ("w2", weight), ("s2", state)):
        g.output(name, tensor)
    results = g.run(x=[1, 2, 3])
    assert [results[n].tolist() for n in ("x2", "w2", "s2")] == [[1, 2, 3], [1, 1, 1], [0, 0, 0]]
    assert (weight.name, state.name) == ("w", "s")


def test_one_node_may_have_two_names(g: gg.Graph) -> None:
    y = g.input("x", (2,)) * 2
    g.output("a", y)
    g.output("b", y)
    assert {n: v.tolist() for n, v in g.run(x=[1, 2]).items()} == {"a": [2, 4], "b": [2, 4]}


def test_states_keep_their_value_from_run_to_run(g: gg.Graph) -> None:
    total = g.state("total", (3,))
    g.output("sum", gg.copy(total + g.input("x", (3,)), total))
    assert [g.run(x=[1, 2, 3])["sum"].tolist() for _ in range(3)] == [[1, 2, 3], [2, 4, 6], [3, 6, 9]]
    assert total.numpy().tolist() == [3, 6, 9]
    total.set(np.zeros(3))
    assert g.run(x=[1, 2, 3])["sum"].tolist() == [1, 2, 3]


def test_a_cache_grows_row_by_row(g: gg.Graph) -> None:
    cache = g.state("cache", (8, 4), "f16")
    written = gg.set_rows(cache, g.input("row", (1, 4)), g.input("at", (1,), "i64"))
    g.output("seen", written.cast("f32"))
    for i in range(8):
        seen = g.run(row=np.full((1, 4), i + 1), at=[i])["seen"]
        assert seen[:, 0].tolist() == [*range(1, i + 2), *[0] * (7 - i)]


@pytest.mark.parametrize("kind", [None, "f16", "bf16", "q8_0"])
def test_weights_are_converted_to_their_type(g: gg.Graph, kind: str | None) -> None:
    w = random(4, 64).astype(np.float64)
    weight = g.weight(w, type=kind)
    assert weight.dtype.name == (kind or "f32")
    np.testing.assert_array_equal(weight.numpy(), stored(w.astype(np.float32), kind or "f32"))


def test_a_weight_must_have_a_shape_and_a_type_that_ggml_knows(g: gg.Graph) -> None:
    for data, options in (
        (3.0, {}),
        (np.ones(3) * 1j, {}),
        (np.ones((2, 33)), {"type": "q8_0"}),
        (np.ones(3), {"type": "f33"}),
    ):
        with pytest.raises(gg.ShapeError):
            g.weight(data, **options)


def test_the_same_name_twice_is_refused(g: gg.Graph) -> None:
    x = g.input("x", (1,))
    g.output("y", x * 2)
    for again in (
        lambda: g.input("x", (1,)),
        lambda: g.input("y", (1,)),
        lambda: g.output("x", x),
        lambda: g.output("y", x),
    ):
        with pytest.raises(gg.ShapeError, match="has an input or output '[xy]' already"):
            again()


def test_inputs_have_types_that_numpy_has(g: gg.Graph) -> None:
    with pytest.raises(gg.ShapeError, match="input 'x' cannot be q8_0; use a type that numpy has"):
        g.input("x", (32,), "q8_0")


def test_nothing_is_added_to_a_built_graph(g: gg.Graph) -> None:
    x = g.input("x", (1,))
    g.output("y", x * 2)
    g.build()
    for add in (lambda: x * 3, lambda: g.input("z", (1,)), lambda: g.output("z", x), lambda: g.do(x)):
        with pytest.raises(gg.ShapeError, match="built already; make a new one"):
            add()


def test_a_graph_without_nodes_does_not_run(g: gg.Graph) -> None:
    g.input("x", (1,))
    with pytest.raises(gg.ShapeError, match="computes nothing; name an output"):
        g.run(x=[1])


def test_a_graph_has_room_for_as_many_nodes_as_it_was_given() -> None:
    with gg.Graph(cpu(), max_nodes=8) as g:
        x = g.input("x", (1,))
        for _ in range(7):
            x = x + 1
        g.do(x)
        assert g.n_nodes == 7
        with pytest.raises(gg.ShapeError, match=r"more than 8 nodes; give Graph\(max_nodes=...\)"):
            x + 1


def test_a_graph_has_room_for_as_many_weights() -> None:
    with (
        gg.Buffer(cpu(), {str(i): ((1,), "f32") for i in range(20)}) as buffer,
        gg.Graph(cpu(), max_nodes=8) as g,
    ):
        for i in range(8):
            g.use(buffer[str(i)])
            g.use(buffer[str(i)])
        with pytest.raises(gg.ShapeError, match="more than 8 weights"):
            g.use(buffer["8"])


@pytest.mark.parametrize("n", [0, -1, 10**6])
def test_the_number_of_nodes_is_bounded(n: int) -> None:
    with pytest.raises(gg.ShapeError, match=f"max_nodes = {n}; 1 to 32768 are possible"):
        gg.Graph(cpu(), max_nodes=n)


def test_the_longest_chain_that_is_allowed_runs() -> None:
    with gg.Graph(cpu(), max_nodes=32768) as g:
        x = g.input("x", (1,))
        for _ in range(32767):
            x = x + 1
        g.output("y", x)
        assert g.run(x=[1])["y"] == 32768


def test_what_the_device_lacks_is_named(g: gg.Graph) -> None:
    table = g.state("table", (4, 256), "iq3_s")
    g.do(gg.set_rows(table, g.input("rows", (1, 256)), g.input("at", (1,), "i32")))
    with pytest.raises(
        gg.ComputeError,
        match=r"cpu cannot compute SET_ROWS .* with result \[256, 4, 1, 1\] \(innermost first\)",
    ):
        g.build()
    assert not cpu().supports(gg.set_rows(table, g.input("r", (1, 256)), g.input("a", (1,), "i32")))


def test_phantoms_ask_what_a_device_can_do(g: gg.Graph) -> None:
    x = g.input("x", (3, 512))
    for kind, able in (("q4_k", True), ("f16", True)):
        assert cpu().supports(gg.mul_mat(g.phantom("w", (32, 512), kind), x)) is able


def test_only_outputs_of_a_graph_are_read_through_their_tensors(g: gg.Graph) -> None:
    x = g.input("x", (4,))
    middle = x * 2
    y = g.output("y", middle + 1)
    with pytest.raises(gg.ShapeError, match="has no memory now; build and run"):
        y.numpy()
    g.run(x=np.ones(4))
    assert y.numpy().tolist() == [3] * 4
    with pytest.raises(
        gg.ShapeError, match=r"is no output: its memory is used again; name it by graph\.output"
    ):
        middle.numpy()
    with pytest.raises(gg.ShapeError, match=r"give values to inputs in run\(\)"):
        x.set(np.ones(4))


def test_windows_on_states_are_read_and_set(g: gg.Graph) -> None:
    state = g.state("s", (4, 8))
    g.use(state)[1:3].set(np.ones((2, 8)))
    assert state.numpy().sum(-1).tolist() == [0, 8, 8, 0]
    assert state[2].numpy().tolist() == [1] * 8
    with pytest.raises(gg.ShapeError, match=r"not contiguous; use its \.cont\(\)"):
        state[:, 2].numpy()
