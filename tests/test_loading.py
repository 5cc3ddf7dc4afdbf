"""Loading by the planner: what is allocated is what was planned, and what does not fit is refused with remedies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paper_models import CPU, GIB, Q8_0, facts, gpus, llama_8b, numbers, total_bytes
from planned_bytes import check_bytes
from tiny_families import write_family

import pyggml as gg
from pyggml.engine import LLM, ConfigError
from pyggml.engine import device_facts as device_facts_module
from pyggml.engine.arrangement import Arrangement, arrange, cache_facts, deal_model
from pyggml.engine.balance import DeviceFacts
from pyggml.engine.demand import ModelFacts
from pyggml.engine.fit import largest_ctx
from pyggml.engine.host_memory import available_bytes
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.loading import _graph_notes, _transport_notes
from pyggml.engine.measuring import Speed, measured
from pyggml.engine.prediction import Mode
from pyggml.engine.slices import WHOLE
from pyggml.engine.weight_table import Cut, Use, Weight
from pyggml.peers import PairProof
from pyggml.transport import Span, TransportReport, TransportRow

SMALL: dict[str, Any] = {"threads": 1, "ctx": 1024, "parallel": 2}


def arranged(
    model: ModelFacts, devices: Sequence[DeviceFacts], machine: Sequence[DeviceFacts] = (), **options: Any
) -> Arrangement:
    return arrange(model, LoadOptions(**options), devices, lambda: machine or devices)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how much memory the CPU seems to have free."""
    return lambda n: monkeypatch.setattr("pyggml.engine.device_facts.free_bytes", lambda device: n)


@pytest.fixture
def no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pyggml.engine.loading.Weights", fail)


# What is allocated is what was planned


@pytest.mark.parametrize(
    "where",
    [
        {"device": "cpu"},
        {"device": "cpu,cpu", "tp": 2},
        {"device": "cpu,cpu,cpu", "tp": 3},
        {"device": "cpu,cpu", "tp": 2, "tensor_split": "3,1"},
        {"device": "cpu,cpu", "layer_split": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("arch", "options"),
    [
        ("llama", {"n_head": 6, "n_head_kv": 3, "n_ff": 768, "n_vocab": 384}),
        ("llama", {"variant": "bias+tied"}),
        ("llama", {"variant": "bias+tied", "quant": "Q8_0", "n_vocab": 384}),
        ("llama", {"quant": "Q8_0", "n_vocab": 333}),
        ("llama", {"quant": "Q4_0", "n_ff": 768}),
        ("gemma3", {}),
        ("qwen3moe", {}),
    ],
    ids=str,
)
def test_each_ranks_bytes_are_those_of_the_plan(
    arch: str, options: dict[str, Any], where: dict[str, Any], tiny: Callable[..., Path]
) -> None:
    check_bytes(tiny(arch, **options), **SMALL, **where)


def test_a_batch_of_one_matrix_takes_what_a_batch_of_several_does(tmp_path: Path) -> None:
    """Ranks with one head of latent attention, really and on paper."""
    path = write_family(tmp_path / "model.gguf", "deepseek2", quant="Q8_0")
    check_bytes(path, **SMALL, device="cpu,cpu,cpu,cpu", tp=4)
    model, cpus = facts(numbers()), [replace(CPU, layouts=((str(Q8_0), False, 1, 2.0),))] * 4
    of_heads = Weight("blk.0.attn_k_b.weight", (4, 64, 32), Cut.HEADS, Use.MUL_MAT)
    rows = [*model.rows, of_heads]
    batched = replace(model, rows=rows, types={**model.types, of_heads.name: Q8_0})
    plain, beside = (deal_model(m, LoadOptions(tp=4), cpus).demands for m in (model, batched))
    assert plain[0].layout_bytes > 0
    for one, other in zip(plain, beside, strict=True):
        assert other.cut_bytes - one.cut_bytes == 64 * 34 and other.layout_bytes == one.layout_bytes


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [
        (lambda n: n + 144, []),  # as CUDA keeps free behind a matrix
        (lambda n: n * 10 // 9 + 144, [pytest.approx(10 / 9, rel=0.02)]),
    ],
    ids=["a tail", "a layout"],
)
def test_what_rows_take_in_layouts_is_told_from_what_lies_behind_them(
    sizes: Callable[[int], int], factors: list[Any]
) -> None:
    def weight_bytes(shape: Sequence[int], kind: gg.DType, *, experts: bool) -> int:
        return sizes(WHOLE.n_bytes(shape, kind))

    model = facts(llama_8b(), gg.dtype("q8_0"))
    found = device_facts_module._layouts(SimpleNamespace(weight_bytes=weight_bytes), model)  # type: ignore[arg-type]
    assert sorted({factor for *_, factor in found}, key=float) == factors


def test_the_bytes_of_all_ranks_are_the_file_and_its_copies(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), **SMALL, device="cpu,cpu", tp=2) as llm:
        held = sum(p.weights_bytes + p.mapped_bytes for p in llm.plan)
        assert held == pytest.approx(llm.model.n_bytes + llm.plan[1].replicated_bytes, rel=0.01)


def test_a_rank_with_all_of_the_shares_is_one_device(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), **SMALL, device="cpu,cpu", tp=2, tensor_split="0,1") as llm:
        assert len(llm.plan) == 1
        assert llm.notes == ("One device: cpu", "shares as given: 0,1")


def test_what_is_for_several_ranks_is_said_to_be_unused_on_one(tiny: Callable[..., Path]) -> None:
    asked: dict[str, Any] = {"transport": "push", "reduce_dtype": "bf16", "expert_split": "experts"}
    with LLM(tiny("llama"), **SMALL, device="cpu", tp=1, **asked) as llm:
        words = ("transport push", "reduce-dtype bf16", "expert-split experts")
        assert llm.notes == tuple(f"{word} is not used on one device" for word in words)


def test_ranks_that_compute_one_at_a_time_are_told(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_PARALLEL_RANKS", "0")
    with LLM(tiny("llama"), **SMALL, device="cpu,cpu", tp=2) as llm:
        assert "ranks compute one at a time (PYGGML_PARALLEL_RANKS)" in llm.notes


@pytest.mark.parametrize(
    ("module", "said", "is_asked", "told"),
    [
        ("cuda", "1", True, ["CUDA graphs are on"]),
        ("cuda", "0", True, ["CUDA graphs are off"]),
        ("cuda", "1", False, ["CUDA graphs are off"]),
        ("cpu", "1", False, []),
    ],
)
def test_whether_cards_replay_graphs_is_told(
    module: str, said: str, is_asked: bool, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_CUDA_GRAPHS", said)
    backend: Any = SimpleNamespace(device=SimpleNamespace(module=module))
    assert _graph_notes([backend], LoadOptions(cuda_graphs=is_asked)) == told


# The context


def test_without_a_context_the_models_own_is_taken_where_it_fits(tiny: Callable[..., Path]) -> None:
    with LLM(tiny("llama"), device="cpu", threads=1) as llm:
        assert (llm.n_ctx, llm.notes) == (4096, ())


def test_without_a_context_the_largest_that_fits_is_taken_and_told(
    tiny: Callable[..., Path], free: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pyggml.engine")
    free(12 * 2**20)
    with LLM(tiny("llama"), device="cpu", threads=1, parallel=1) as llm:
        assert 64 < llm.n_ctx < 4096 and llm.n_ctx % 256 == 0
        note = f"ctx = {llm.n_ctx} of the model's 4096: the largest that fits cpu"
        assert llm.notes == (note,)
    assert note in caplog.messages


@pytest.mark.parametrize("where", [{"device": "cpu"}, {"device": "cpu,cpu", "tp": 2}], ids=str)
@pytest.mark.usefixtures("no_weights")
def test_a_context_that_does_not_fit_is_refused_with_needed_and_free_bytes(
    where: dict[str, Any], tiny: Callable[..., Path], free: Callable[[int], None]
) -> None:
    free(60 * 2**20)
    with pytest.raises(ConfigError) as refused:
        LLM(tiny("llama"), threads=1, ctx=4096, parallel=4, cache_type_k="f32", cache_type_v="f32", **where)
    words = str(refused.value)
    assert words.startswith("ctx = 4096 with 4 slots needs ")
    assert f" bytes on cpu; {60 * 2**20} are free; these fit: " in words
    assert int(words.split(" needs ")[1].split()[0]) > 60 * 2**20
    assert "--cache-type-k q8_0 --cache-type-v q8_0; " in words


@pytest.mark.usefixtures("no_weights")
def test_weights_that_stay_in_the_file_need_memory_too(
    tiny: Callable[..., Path], free: Callable[[int], None]
) -> None:
    free(2**20)
    with pytest.raises(ConfigError, match="1048576 are free; nothing on this machine fits it"):
        LLM(tiny("llama"), threads=1, ctx=64, parallel=1, batch=8, device="cpu")


def test_every_remedy_of_a_refusal_can_be_loaded(
    tiny: Callable[..., Path], free: Callable[[int], None]
) -> None:
    free(60 * 2**20)
    asked: dict[str, Any] = {"threads": 1, "ctx": 4096, "parallel": 4, "device": "cpu,cpu", "tp": 2}
    with pytest.raises(ConfigError) as refused:
        LLM(tiny("llama"), **asked, cache_type_k="f32", cache_type_v="f32")
    remedies = str(refused.value).split("these fit: ")[1].split("; ")
    assert len(remedies) >= 2
    for remedy in remedies:
        words = remedy.split()
        named = {n[2:].replace("-", "_"): int(v) if v.isdecimal() else v for n, v in zip(words[::2], words[1::2])}
        kept = {name: asked[name] for name in ("threads", "parallel")} | {"ctx": 4096}
        with LLM(tiny("llama"), **({"cache_type_k": "f32", "cache_type_v": "f32"} | kept | named)) as llm:
            assert llm.n_ctx == named.get("ctx", 4096)


def test_fit_auto_takes_the_first_remedy_and_tells(
    tiny: Callable[..., Path], free: Callable[[int], None]
) -> None:
    free(60 * 2**20)
    asked: dict[str, Any] = {"ctx": 4096, "parallel": 4, "device": "cpu,cpu", "tp": 2, "threads": 1}
    with pytest.raises(ConfigError) as refused:
        LLM(tiny("llama"), **asked, cache_type_k="f32", cache_type_v="f32")
    first = str(refused.value).split("these fit: ")[1].split("; ")[0]
    with LLM(tiny("llama"), **asked, cache_type_k="f32", cache_type_v="f32", fit="auto") as llm:
        assert f"--fit auto took {first}" in llm.notes
        assert llm.generate("abc", max_tokens=2, ignore_eos=True).ids


# On paper: cards that this machine has not


def test_fit_auto_spreads_over_cards_what_one_cannot_hold() -> None:
    found = arranged(facts(llama_8b()), gpus(1, 8), [*gpus(4, 8), CPU], fit="auto")
    assert found.options.where == {"tp": 2}
    assert [d.device.name for d in found.deal.demands] == ["cuda:0", "cuda:1"]
    assert found.notes[0] == "--fit auto took --tp 2"


def test_fit_auto_moves_to_the_card_that_has_room() -> None:
    machine = [*gpus(1, 4), replace(gpus(2)[1], free_bytes=40 * GIB), CPU]
    found = arranged(facts(llama_8b()), machine[:1], machine, fit="auto", device="cuda:0", ctx=8192)
    assert (found.options.where, found.n_ctx) == ({"device": "cuda:1"}, 8192)
    assert found.deal.title == "One device: NVIDIA H200"


def test_a_cpu_behind_cards_takes_only_the_layers_that_they_cannot() -> None:
    model = facts(llama_8b(), gg.dtype("q8_0"))
    few = arranged(model, [*gpus(1, 20), CPU], layer_split=2, ctx=2048)
    assert [d.layers for d in few.deal.demands] == [(0, 31), (31, 32)]
    many = arranged(model, [*gpus(1, 5), CPU], layer_split=2, ctx=2048)
    assert many.notes[0].endswith("; cpu takes those that the others cannot")
    (gpu, cpu) = many.deal.demands
    assert 8 < gpu.n_layer < 31 and cpu.n_layer == 32 - gpu.n_layer


def test_several_processors_share_layers_alike() -> None:
    deal = deal_model(facts(llama_8b()), LoadOptions(layer_split=2), [CPU, CPU])
    assert abs(deal.demands[0].n_layer - deal.demands[1].n_layer) <= 4


def test_unlike_cards_divide_layers_and_heads_by_what_they_have() -> None:
    model = facts(numbers(n_layer=60, n_embd=4096, n_head=32, n_head_kv=8, head_dim=128, n_ff=11008))
    devices = [gpus(1, 32)[0], DeviceFacts("cuda:1", "gpu", "a smaller card", 16 * GIB)]
    layers = arranged(model, devices, layer_split=2, ctx=2048).deal
    assert [d.n_layer for d in layers.demands] == [40, 20]
    heads = arranged(model, devices, tp=2, ctx=2048)
    assert heads.notes == ("shares by free memory: cuda:0 67 %, cuda:1 33 %",)
    assert heads.deal.demands[0].n_head_kv == 5
    faster = [replace(devices[0], bandwidth=3e12), replace(devices[1], bandwidth=1e12)]
    assert arranged(model, faster, tp=2).notes[0] == "shares by measured bandwidth: cuda:0 75 %, cuda:1 25 %"


def test_the_cache_counts_when_shares_are_held_to_memory() -> None:
    model = facts(llama_8b(), gg.dtype("q8_0"))
    devices = [gpus(1, 16)[0], replace(gpus(2)[1], free_bytes=9 * GIB)]
    found = arranged(model, devices, tp=2, ctx=20000, parallel=4)
    assert found.notes == ("shares by free memory, for want of room: cuda:0 65 %, cuda:1 35 %",)
    assert [d.n_head_kv for d in found.deal.demands] == [5, 3]


def test_an_embedding_that_the_device_cannot_look_up_takes_none_of_its_memory() -> None:
    model = facts(llama_8b(), gg.dtype("q8_0"))
    embedding = WHOLE.n_bytes((128256, 4096), model.types["token_embd.weight"])
    (one,) = deal_model(model, LoadOptions(), [replace(gpus(1)[0], looks_up=False)]).demands
    assert one.weights_bytes == total_bytes(model) - embedding


def test_a_tied_head_takes_no_memory_where_it_is_the_mapped_embedding() -> None:
    model = replace(facts(llama_8b()), is_tied=True)
    head = WHOLE.n_bytes((128256, 4096), model.types["output.weight"])
    plain, shared = (
        deal_model(model, LoadOptions(), [replace(CPU, maps_head=maps_head)]).demands[0]
        for maps_head in (False, True)
    )
    assert plain.weights_bytes - shared.weights_bytes == head
    assert plain.read_bytes == shared.read_bytes


def test_results_grow_with_the_context() -> None:
    model = replace(facts(llama_8b()), hp=replace(llama_8b(), n_ctx_train=2**20))
    (demand,) = deal_model(model, LoadOptions(parallel=1), gpus(1)).demands
    assert demand.results_bytes(2**20) - demand.results_bytes(0) == 2 * 512 * 2**20
    most = largest_ctx(model, (demand,), cache_facts(LoadOptions(parallel=1), model.hp))
    assert most < (80 * GIB - demand.weights_bytes) // (32 * 2 * 8 * 128 * 2)


def test_a_context_beyond_the_models_own_is_told() -> None:
    found = arranged(facts(numbers()), gpus(1), ctx=5000)
    assert found.notes == ("ctx = 5000 is longer than the model's own 4096; what lies beyond it was never trained",)


@pytest.mark.parametrize(
    ("options", "n", "title"),
    [
        ({}, 1, "One device: NVIDIA H200"),
        ({"tp": 2}, 2, "Tensor parallelism: 2 ranks (NVIDIA H200, NVIDIA H200)"),
        ({"layer_split": 2}, 2, "Layer split: 2 devices (NVIDIA H200, NVIDIA H200)"),
    ],
)
def test_the_title_names_mode_ranks_and_cards(options: dict[str, Any], n: int, title: str) -> None:
    assert arranged(facts(llama_8b()), gpus(n), **options).deal.title == title


# What the facts are made of


def test_ranks_on_one_device_are_measured_at_work_together(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def speed(name: str, kind: str, **options: Any) -> Speed:
        calls.append((name, kind, options))
        return Speed(1e9, 2e9, 3e-6)

    monkeypatch.setattr("pyggml.engine.measuring.device_speed", speed)
    (a, b) = measured([CPU, CPU], "q4_K", threads=3)
    assert (a.bandwidth, b.flops, b.layer_s) == (1e9, 2e9, 3e-6)
    assert calls == [("cpu", "q4_K", {"n_at_once": 2, "threads": 3})] * 2
    measured([CPU, CPU], "q4_K", threads=3, is_at_once=False)
    assert calls[-1][2]["n_at_once"] == 1


@pytest.mark.usefixtures("no_weights")
def test_a_type_that_a_rank_cannot_multiply_by_is_refused_before_loading(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: gg.Backend, shape: Sequence[int], kind: gg.DType, *, experts: bool = False) -> Any:
        if shape[0] == 256:  # no matrix of one whole device: half of n_ff
            raise gg.DeviceError(f"{self.device.name} cannot multiply by {kind.name} weights")
        return self.buffer_types()[-1]

    monkeypatch.setattr(gg.Backend, "weight_buffer_type", refuse)
    with pytest.raises(gg.DeviceError, match="cannot multiply by f32"):
        LLM(tiny("llama"), device="cpu,cpu", tp=2, **SMALL)


def files(root: Path, contents: dict[str, str]) -> Path:
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 2000 kB\nMemAvailable:     1000 kB\n"}


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ({}, None),
        (MEMINFO, 1000 * 1024),
        (MEMINFO | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 1000 * 1024),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/memory.current": "3000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 700\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "3000\n",
            },
            2700,
        ),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "4:memory:/x\n3:cpuset:/x\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "4000\n",
                "sys/fs/cgroup/memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n",
            },
            5100,
        ),
    ],
    ids=["nothing", "meminfo", "no limit", "a group around", "version 1"],
)
def test_the_hosts_memory_is_what_linux_and_the_control_groups_leave(
    contents: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    assert available_bytes(files(tmp_path, contents)) == expected


def test_cards_that_sum_through_host_memory_are_named() -> None:
    model = facts(llama_8b(), gg.dtype("q8_0"))
    vulkan = [replace(d, name=d.name.replace("cuda", "vulkan")) for d in gpus(2)]
    words = "sums go through host memory, since vulkan:0, vulkan:1 cannot reach other cards; one device may be faster"
    assert words in arranged(model, vulkan, tp=2).notes
    for devices, options in ((gpus(2), {"tp": 2}), (vulkan, {"layer_split": 2}), (vulkan[:1], {})):
        assert not [note for note in arranged(model, devices, **options).notes if "host memory" in note]


def test_what_was_found_about_pairs_of_cards_is_told() -> None:
    wrong = "copies of 64 bytes: 64 bytes are wrong, the first at 0"
    pairs = [PairProof(0, 1, wrong, True, True), PairProof(1, 0, wrong, True, True)]
    rows = [TransportRow("push", reason="a pair lies"), TransportRow("nccl-shm", passed=True)]
    tried = {"nccl": "never", "nccl-shm": "earlier"}
    report = TransportReport(rows, pairs, [Span("nccl-shm", 0, 2**63 - 1)], trials=tried)
    group: Any = SimpleNamespace(transports=report, reduce_dtype="bf16", is_serial=False)
    assert _transport_notes(group, Mode.TENSOR) == [
        f"rank 0 to rank 1: {wrong} (found earlier; doctor --retest tries again)",
        f"rank 1 to rank 0: {wrong} (found earlier; doctor --retest tries again)",
        "peer copies deliver in 0 of 2 directions, found earlier",
        "push is not used: a pair lies",
        "nccl-shm was tried earlier in a process of its own",
        "sums over ranks go through: nccl-shm",
        "prompts' sums of 262144 numbers and more travel as bf16",
    ]
