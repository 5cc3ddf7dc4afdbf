"""A plan's launches are recorded in its second run and replayed from then on; a stand-in takes CUDA's place.

The stand-in runs what is recorded at once and does nothing on a launch, so results show whether a run was walked.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fused_graphs
import numpy as np
import pytest
from fused_graphs import matrix

import pyggml as gg
from pyggml import cuda_module
from pyggml._ffi import ffi, lib
from pyggml.engine import LLM
from pyggml.engine.plan import Plan


class Recorder:
    """A table of functions as the CUDA module has it, with counts of what was called."""

    def __init__(
        self, *, refusal: str = "", fails_to_end: bool = False, fuses: bool = False, attends: bool = False
    ) -> None:
        self.calls: list[str] = []
        self.refusal, self.fails_to_end, self.fuses, self.attends = refusal, fails_to_end, fuses, attends
        self.api = ffi.new("pgc_api *")
        recorded = "can_capture", "capture_begin", "capture_end", "graph_launch", "graph_free"
        names = *recorded, "can_fuse", "can_attend", "fuse_launch", "sum_with"
        self._kept = [self._set(name) for name in names]

    def _set(self, name: str) -> Any:
        callback = ffi.callback(ffi.typeof(getattr(self.api, name)), getattr(self, name))
        setattr(self.api, name, callback)
        return callback

    def can_capture(self, backend: Any, graph: Any, why: Any, size: int) -> bool:
        ffi.memmove(why, self.refusal.encode() + b"\0", len(self.refusal) + 1)
        return not self.refusal

    def capture_begin(self, backend: Any, streams_weights: bool, why: Any, size: int) -> bool:
        self.calls.append("begin streaming" if streams_weights else "begin")
        return True

    def capture_end(self, backend: Any, earlier: Any, why: Any, size: int) -> Any:
        self.calls.append("end" if earlier == ffi.NULL else "change")
        ffi.memmove(why, b"no room\0", 8)
        return ffi.NULL if self.fails_to_end else ffi.cast("pgc_graph *", 1)

    def graph_launch(self, graph: Any, why: Any, size: int) -> bool:
        self.calls.append("launch")
        return True

    def graph_free(self, graph: Any) -> None:
        if graph != ffi.NULL:
            self.calls.append("free")

    def can_fuse(self, backend: Any) -> bool:
        return self.fuses

    def can_attend(self, backend: Any) -> bool:
        return self.attends

    def fuse_launch(self, fused: Any, backend: Any, why: Any, size: int) -> bool:
        self.calls.append("attention" if fused.heads.attention != ffi.NULL else "fused")
        return True

    def sum_with(self, addend: Any, out: Any, is_before_ours: bool) -> None:
        """Sums are the host's here and add nothing."""


@pytest.fixture
def recorder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    made = Recorder(**getattr(request, "param", {}))

    def record(layout: Any) -> None:
        lib.pg_plan_use(layout._plan, made.api, True)
        assert lib.pg_plan_replay(layout._plan)

    monkeypatch.setattr("pyggml.layout.Layout.record", record)
    yield made


def double(backend: gg.Backend) -> gg.Graph:
    """A graph that may be computed twice from the same inputs, as the stand-in does: nothing happens in place."""
    graph = gg.Graph(backend)
    x = graph.input("x", (1, 4))
    graph.output("y", x @ graph.weight(2 * np.eye(4, dtype=np.float32)))
    return graph


def ran(graph: gg.Graph, value: float) -> bool:
    """Whether a run with this value was computed."""
    return bool(graph.run(x=np.full((1, 4), value, np.float32))["y"][0, 0] == 2 * value)


def test_the_second_run_is_recorded_and_later_ones_are_replayed(recorder: Recorder) -> None:
    with gg.Backend("cpu") as backend:
        graph = double(backend)
        assert ran(graph, 1.0) and recorder.calls == []
        assert graph.replay == ("waiting", "")
        assert ran(graph, 2.0) and recorder.calls == ["begin", "end", "launch"]
        assert graph.replay == ("recorded", "")
        assert not ran(graph, 3.0), "a replay walks no nodes"
        assert recorder.calls[3:] == ["launch"]
        graph.close()
    assert recorder.calls[4:] == ["free"]


@pytest.mark.parametrize("recorder", [{"fuses": True}], indirect=True)
@pytest.mark.parametrize(("n_columns", "begins"), [(1, "begin streaming"), (8, "begin streaming"), (9, "begin")])
def test_fused_products_of_few_columns_are_recorded_as_reading_weights(
    n_columns: int, begins: str, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_FUSED", "all")
    with gg.Backend("cpu") as backend, gg.Graph(backend) as graph:
        x = graph.input("x", (n_columns, 256))
        graph.output("y", gg.mul_mat(matrix(graph, 32, 256, "q8_0", 1), x))
        for _ in range(2):
            graph.run(x=np.ones((n_columns, 256), np.float32))
    assert recorder.calls == ["fused", begins, "fused", "end", "launch", "free"]


@pytest.mark.parametrize("recorder", [{"fuses": True}], indirect=True)
def test_a_prompts_chunk_whose_last_row_alone_goes_on_does_not_read_weights_only(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_FUSED", "all")
    with gg.Backend("cpu") as backend, gg.Graph(backend) as graph:
        hidden = gg.mul_mat(graph.weight(np.ones((256, 256), np.float16)), graph.input("x", (32, 256)))
        graph.output("y", gg.mul_mat(matrix(graph, 32, 256, "q8_0", 1), hidden[31:].cont()))
        for _ in range(2):
            graph.run(x=np.ones((32, 256), np.float32))
    assert [call for call in recorder.calls if call.startswith("begin")] == ["begin"]
    assert "fused" in recorder.calls


def test_after_a_move_what_was_recorded_becomes_what_is_recorded_anew(recorder: Recorder) -> None:
    with gg.Backend("cpu") as backend:
        graph = double(backend)
        assert ran(graph, 1.0) and ran(graph, 2.0)
        for _ in range(2):
            recorder.calls.clear()
            graph.check_fresh().forget_recorded()
            assert graph.replay == ("waiting", "")
            assert ran(graph, 3.0) and recorder.calls == ["begin", "change", "launch"]
            assert not ran(graph, 4.0) and graph.replay == ("recorded", "")
        recorder.calls.clear()
        graph.check_fresh().forget_recorded()
        graph.close()
    assert recorder.calls == ["free"], "once, also where it was not recorded anew"


@pytest.mark.parametrize(
    ("recorder", "why"),
    [({"refusal": "experts wait"}, "experts wait"), ({"fails_to_end": True}, "no room")],
    indirect=["recorder"],
)
def test_what_cannot_be_recorded_is_walked_and_says_why(recorder: Recorder, why: str) -> None:
    with gg.Backend("cpu") as backend, double(backend) as graph:
        assert all(ran(graph, value) for value in (1.0, 2.0, 3.0, 4.0))
        assert graph.replay == ("refused", why)
        assert "launch" not in recorder.calls


def test_stretches_end_where_a_sum_goes_through_the_host(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyggml.group_graph.all", lambda _: True, raising=False)

    def build(graph: gg.RankGraph, rank: int) -> None:
        x = graph.input("x", (4,))
        graph.output("y", graph.all_reduce(graph.all_reduce(x * 2.0) + 1.0))

    with gg.Group(["cpu", "cpu"]) as group, group.compile(build) as graphs:
        for run in range(3):
            x = np.full(4, float(run), np.float32)
            y = graphs.run(x=x)["y"]
            if run == 0:
                np.testing.assert_array_equal(y, 2 * (4 * x + 1))
        assert recorder.calls.count("begin") == 2 * 2, "two stretches a rank: nothing follows the last sum"
        assert recorder.calls.count("launch") == 2 * 2 * 2
        assert group.n_reduces() == 3 * 2
        assert {graph.replay for graph in graphs.graphs} == {("recorded", "")}


def test_a_graph_may_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyggml.layout.Layout.record", lambda *_: pytest.fail("asked to record"))
    with gg.Backend("cpu") as backend, gg.Graph(backend, replay=False) as graph:
        graph.output("y", graph.input("x", (4,)) * 2.0)
        assert graph.run(x=np.ones(4, np.float32))["y"][0] == 2.0
        assert graph.replay == ("off", "")


@pytest.mark.parametrize(("said", "on"), [("0", False), ("off", False), ("1", True), ("", True), (None, True)])
def test_the_environment_switches_recording_off(
    monkeypatch: pytest.MonkeyPatch, said: str | None, on: bool
) -> None:
    if said is None:
        monkeypatch.delenv("PYGGML_CUDA_GRAPHS", raising=False)
    else:
        monkeypatch.setenv("PYGGML_CUDA_GRAPHS", said)
    assert cuda_module.are_graphs_on() is on


@pytest.mark.parametrize(("said", "state"), [("1", "waiting"), ("0", "off"), ("off", "off")])
def test_what_the_environment_switches_off_is_not_recorded(
    said: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", said)
    made = Recorder()  # which keeps what the table calls
    with gg.Backend("cpu") as backend, double(backend) as graph:
        graph.build()
        layout = graph.check_fresh()
        layout._api = made.api
        lib.pg_plan_use(layout._plan, made.api, False)
        layout.record()
        assert graph.replay == (state, "")


@pytest.mark.parametrize("is_on", [True, False])
def test_the_option_switches_recording_off(
    is_on: bool, tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: set[tuple[bool, bool]] = set()  # whether a plan is for decode, and to be recorded
    build = Plan._build

    def noted(plan: Plan, *arguments: Any) -> gg.RankGraph:
        class Noted(gg.RankGraph):
            def __init__(self, *arguments: Any, replay: bool, **options: Any) -> None:
                asked.add((plan.shape.n_tokens == 1, replay))
                super().__init__(*arguments, replay=replay, **options)

        with monkeypatch.context() as patch:
            patch.setattr(gg, "RankGraph", Noted)
            return build(plan, *arguments)

    monkeypatch.setattr(Plan, "_build", noted)
    with LLM(tiny("llama"), device="cpu,cpu", tp=2, threads=1, ctx=256, parallel=2, cuda_graphs=is_on) as llm:
        llm.generate([[5] * 100], temperature=0, max_tokens=2, ignore_eos=True)
    assert asked == {(True, is_on), (False, False)}


def test_graphs_of_ggml_itself_are_off_where_ours_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml-cuda would record what is being recorded; it reads the variable at its first step."""
    device_module = importlib.import_module("pyggml.device")
    (tmp_path / "libpyggml-cuda.so").touch()
    monkeypatch.setattr(device_module, "LIBRARY_DIR", tmp_path)
    monkeypatch.setenv("GGML_CUDA_DISABLE_GRAPHS", "0")
    with pytest.raises(gg.BuildError, match="no CPU backend"):
        device_module._load_modules.__wrapped__()
    assert os.environ["GGML_CUDA_DISABLE_GRAPHS"] == "1"


@pytest.mark.parametrize(
    ("recorder", "n_kv", "is_ours"),
    [
        ({"fuses": True, "attends": True}, 256, True),
        ({"fuses": True, "attends": True}, 4352, False),
        ({"fuses": True}, 256, False),
    ],
    indirect=["recorder"],
)
def test_attention_that_is_not_ours_is_computed_behind_our_heads(n_kv: int, is_ours: bool, recorder: Recorder) -> None:
    """The stand-in computes nothing, so what changes with V is ggml's."""
    with gg.Backend("cpu") as backend:
        graph = gg.Graph(backend)
        inputs = fused_graphs.build(graph, fused_graphs.Case("heads-attends", n_kv=n_kv))
        found = []
        for _ in range(2):
            found.append(graph.run(**inputs)["seen"].copy())
            table = fused_graphs.table_of(graph, "v")
            table.set(2 * table.numpy())
        assert np.array_equal(*found, equal_nan=True) is is_ours
        assert recorder.calls == [name := "attention" if is_ours else "fused", "begin streaming", name, "end", "launch"]
        graph.close()


@pytest.mark.parametrize("recorder", [{"fuses": True, "attends": True}], indirect=True)
@pytest.mark.parametrize(("setting", "is_ours"), [("1", False), ("products,attention-ranks", True)])
def test_beside_sums_over_ranks_attention_is_ours_by_name_only(
    setting: str, is_ours: bool, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_FUSED", setting)
    inputs: dict[str, np.ndarray] = {}

    def build(g: gg.RankGraph, rank: int) -> None:
        inputs.update(fused_graphs.build(g, fused_graphs.Case("heads-attends")))
        g.output("sum", g.all_reduce(g.input("part", (1, 4)) * 1.0))

    with gg.Group(["cpu", "cpu"], threads=1) as group, group.compile(build) as graph:
        for of_rank in graph.graphs:
            of_rank._layout.record()  # has the plan use the stand-in
        graph.run(**inputs, part=np.ones((1, 4), np.float32))
        assert recorder.calls == ["attention" if is_ours else "fused"] * 2
