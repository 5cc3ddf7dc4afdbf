"""Where time goes: nodes timed one by one, kernels' names, and a step of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyggml as gg
from pyggml.device import LIBRARY_DIR
from pyggml.engine import LLM, Model, RequestError
from pyggml.engine.ceiling import bandwidth, decode_ceiling, step_bytes
from pyggml.profile import grouped, kernel_name


def product(graph: gg.Graph) -> gg.Tensor:
    x = graph.input("x", (4, 256))
    w = graph.weight(np.ones((512, 256), np.float32), type="q8_0")
    y = gg.silu(gg.mul_mat(w, gg.rms_norm(x, 1e-5)))
    return graph.output("y", gg.mul_mat(graph.weight(np.ones((8, 512), np.float32)), y))


def test_nodes_are_named_by_operation_and_shapes_and_leave_results_right() -> None:
    with gg.Backend("cpu", threads=1) as backend, gg.Graph(backend) as graph:
        product(graph)
        x = np.ones((4, 256), np.float32)
        before = graph.run(x=x)["y"]
        works = graph.node_times(2)
        assert {work.name for work in works} == {
            "RMS_NORM f32 4x256", "MUL_MAT q8_0 512x256 -> 4x512", "SILU f32 4x512", "MUL_MAT f32 8x512 -> 4x8",
        }  # fmt: skip
        assert all(work.count == 1 and work.seconds > 0 for work in works)
        assert [work.seconds for work in works] == sorted((work.seconds for work in works), reverse=True)
        assert (graph.run(x=x)["y"] == before).all()


def test_node_times_need_a_run() -> None:
    with gg.Backend("cpu", threads=1) as backend, gg.Graph(backend) as graph:
        product(graph)
        with pytest.raises(gg.ShapeError, match="n_runs = 0; at least 1"):
            graph.node_times(0)


def test_like_nodes_come_together_and_views_are_left_out() -> None:
    works = grouped(["ADD f32 8", "RESHAPE f32 8", "MUL f32 8", "ADD f32 8"], [1.0, 0.0, 3.0, 1.5])
    assert works == [gg.Work("MUL f32 8", 1, 3.0), gg.Work("ADD f32 8", 2, 2.5)]


@pytest.mark.parametrize(
    ("linker_name", "grid", "expected"),
    [
        ("_Z13mul_mat_vec_qIL9ggml_type8ELb0EEvPKvS2_", (64, 1, 1), "mul_mat_vec_q<(ggml_type)8, false> [64x1x1]"),
        ("_Z9add_plainPKfS0_Pfi", (3, 2, 1), "add_plain [3x2x1]"),
        ("_ZN12_GLOBAL__N_14pushEPfi", (1, 1, 1), "(anonymous namespace)::push [1x1x1]"),
        ("ncclDevKernel_AllReduce", (2, 1, 1), "ncclDevKernel_AllReduce [2x1x1]"),
        ("memory copy", (0, 0, 0), "memory copy"),
    ],
)  # fmt: skip
def test_kernels_are_named_as_people_write_them(
    linker_name: str, grid: tuple[int, ...], expected: str
) -> None:
    assert kernel_name(linker_name, grid) == expected


def test_a_trace_without_cuda_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_CUPTI", str(tmp_path / "libcupti.so"))
    with pytest.raises(gg.DeviceError, match="libcupti.so: cannot open shared object file.*PYGGML_CUPTI"):
        gg.KernelTrace()
    monkeypatch.setenv("PYGGML_CUPTI", str(LIBRARY_DIR / "libggml-base.so"))
    with pytest.raises(gg.DeviceError, match="lacks CUPTI's activity functions"):
        gg.KernelTrace()


PLACES: dict[str, dict[str, Any]] = {
    "one": {"device": "cpu"},
    "tp": {"device": "cpu,cpu", "tp": 2},
    "layers": {"device": "cpu,cpu", "layer_split": 2},
}


@pytest.mark.parametrize("where", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("arch", ["llama", "qwen3moe", "gemma3"])
def test_a_profile_names_a_steps_nodes_and_disturbs_no_answer(
    arch: str, where: dict[str, Any], tiny: Callable[..., Path]
) -> None:
    with LLM(tiny(arch, quant="Q8_0"), ctx=512, parallel=3, threads=1, **where) as llm:
        prompt = [list(range(1, 30))]
        before = llm.generate(prompt, max_tokens=8, temperature=0)[0].ids
        for step in ({"n_past": 20}, {"n_tokens": 24}, {"n_seq": 3, "n_past": 300}):
            found = llm.probe.profile(**step)
            assert (found.way, found.why) == ("nodes", "")
            assert found.n_seq == step.get("n_seq", 1) and found.n_tokens == step.get("n_tokens", 1)
            assert found.n_kv == (512 if "n_seq" in step else 256)
            assert found.total_s == pytest.approx(sum(work.seconds for work in found.works))
            assert found.step_s > 0
            counts = {
                name: sum(w.count for w in found.works if w.name.split()[0] == name)
                for name in ("FLASH_ATTN_EXT",)
            }
            n_layer = llm.model.hparams.n_layer
            assert counts["FLASH_ATTN_EXT"] == n_layer * (2 if "tp" in where else 1)
        assert llm.generate(prompt, max_tokens=8, temperature=0)[0].ids == before


def test_a_profile_of_what_cannot_be_is_refused(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), ctx=128, parallel=2, threads=1) as llm:
        for step in (
            {"n_tokens": 2, "n_seq": 2},
            {"n_tokens": 0},
            {"n_seq": 3},
            {"n_past": 128},
            {"n_past": -1},
        ):
            with pytest.raises(RequestError, match="a step of"):
                llm.probe.profile(**step)


def test_a_decode_step_reads_weights_once_and_each_sequences_cache(tiny: Callable[..., Path]) -> None:
    model = Model(tiny("llama"))
    embedding = model.file.tensors["token_embd.weight"].n_bytes
    hp = model.hparams
    token = hp.n_layer * hp.n_head_kv * 2 * hp.head_dim * 2
    assert step_bytes(model, 1, 0) == model.n_bytes - embedding
    assert step_bytes(model, 4, 10) == model.n_bytes - embedding + 40 * token
    model.close()
    tied = Model(tiny("gemma3"))
    assert step_bytes(tied, 1, 0) == tied.n_bytes
    tied.close()
    moe = Model(tiny("qwen3moe"))
    experts = sum(t.n_bytes for name, t in moe.file.tensors.items() if "_exps" in name)
    rest = moe.n_bytes - experts - moe.file.tensors["token_embd.weight"].n_bytes
    assert step_bytes(moe, 1, 0) == pytest.approx(rest + experts * 2 / 8)
    assert step_bytes(moe, 2, 0) == pytest.approx(rest + experts * (1 - (6 / 8) ** 2))
    moe.close()


def test_the_ceiling_is_bandwidth_over_bytes(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), ctx=128, parallel=1, threads=1) as llm:
        expected = bandwidth("cpu", 1) / step_bytes(llm.model, 1, 16)
        assert llm.probe.decode_ceiling(1, 16) == pytest.approx(expected)
        one = decode_ceiling(llm.model, llm.plan, 1, 16, 1)
        assert decode_ceiling(llm.model, [*llm.plan, *llm.plan], 1, 16, 1) == pytest.approx(
            one
        )  # one memory for both


def test_sums_are_timed_where_ranks_exchange_them(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), ctx=128, parallel=1, threads=1) as llm:
        assert llm.probe.sums() == {}
    with LLM(tiny("llama"), ctx=128, parallel=1, threads=1, device="cpu,cpu", tp=2) as llm:
        (times,) = llm.probe.sums().values()
        assert all(seconds > 0 for seconds in times.values()) and len(times) > 2
