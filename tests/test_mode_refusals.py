"""Modes, devices, splits and sizes that cannot work end with status 2 and what would, before a weight is read.

The same mistake is made on the command line, in the environment and in an option file; every command that
loads a model, and `plan`, refuses it alike.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_calls import Result, call
from paper_models import Q4_K, even, facts, gpus, numbers, plan_of
from refusals import is_listed

import pyggml as gg
from pyggml.engine import LLM, ConfigError
from pyggml.engine.arrangement import deal_model
from pyggml.engine.cli.options import OPTIONS
from pyggml.engine.load_options import TRANSPORTS, LoadOptions
from pyggml.transport import NAMES as BUILT

CPU2 = {"device": "cpu,cpu"}
CPU3 = {"device": "cpu,cpu,cpu"}

# Options by long name, what the line says is wrong, what it says would work.
REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    # one mode excludes the other
    ({"tp": 2, "layer-split": 2}, "exclude each other", "give one of them"),
    ({"tp": 1, "layer-split": 1}, "exclude each other", "give one of them"),
    ({**CPU2, "tp": 2, "layer-split": 2}, "exclude each other", "--tp cuts inside layers"),
    # more ranks than devices; none are taken in silence
    ({"tp": 2}, "--tp 2 needs 2 GPUs and this machine shows 0", "--device cpu,cpu"),
    ({"tp": 9}, "--tp 9 needs 9 GPUs and this machine shows 0", "--device cpu,cpu,cpu"),
    ({"layer-split": 3}, "--layer-split 3 needs 3 GPUs and this machine shows 0", "--device cpu,cpu,cpu"),
    ({"tp": 17}, "tp = 17", "1 to 16 devices are supported"),
    ({"tp": 17, "device": ",".join(["cpu"] * 17)}, "tp = 17", "1 to 16 devices are supported"),
    ({"layer-split": 17}, "layer-split = 17", "1 to 16 devices are supported"),
    # lists that do not match the number of ranks
    ({**CPU3, "tp": 2}, "lists 3 devices for 2 ranks", "use --tp 3 or --layer-split 3"),
    ({**CPU2, "tp": 3}, "lists 2 devices for 3 ranks", "use --tp 2 or --layer-split 2"),
    ({"device": "cpu", "tp": 2}, "lists 1 devices for 2 ranks", "--device cpu,cpu"),
    ({**CPU2, "layer-split": 3}, "lists 2 devices for 3 ranks", "use --tp 2 or --layer-split 2"),
    # devices that are not there or no devices at all
    ({"device": "cuda:77"}, "no device 'cuda:77'", "this machine has cpu"),
    ({"device": "cpu,cuda:77", "tp": 2}, "no device 'cuda:77'", "this machine has cpu"),
    ({"device": "cpu,", "tp": 2}, "no device ''", "this machine has cpu"),
    ({"device": ",", "tp": 2}, "no device ''", "this machine has cpu"),
    ({"device": "cpu;cpu", "tp": 2}, "no device 'cpu;cpu'", "this machine has cpu"),
    ({"device": "gpu"}, "no device 'gpu'", "this machine has cpu"),
    ({"device": "GPU-1a2b3c4d"}, "no device 'GPU-1a2b3c4d'", "this machine has cpu"),
    ({"device": "0000:65:00.0"}, "no device '0000:65:00.0'", "this machine has cpu"),
    ({"device": "-1"}, "no device '-1'", "this machine has cpu"),
    # the model cannot be dealt so
    ({"layer-split": 3, **CPU3}, "the model has 2 layers", "2 devices at most"),
    ({**CPU2, "tp": 2, "tensor-split": "1,1e-9"}, "rank 1 would hold no heads", "0 leaves the rank out"),
    # splits
    ({"tensor-split": "3,1"}, "--tensor-split 3,1", "needs --tp or --layer-split"),
    ({"tp": 1, "tensor-split": "1"}, "--tensor-split 1", "needs --tp or --layer-split with 2 or more"),
    ({**CPU2, "tp": 2, "tensor-split": "a,b"}, "tensor-split = 'a,b'", "shares are numbers, as in 3,1"),
    ({**CPU2, "tp": 2, "tensor-split": "1,,2"}, "tensor-split = '1,,2'", "shares are numbers"),
    ({**CPU2, "tp": 2, "tensor-split": "1;2"}, "tensor-split = '1;2'", "shares are numbers"),
    ({**CPU2, "tp": 2, "tensor-split": "1,2,3"}, "has 3 shares", "there are 2 devices for them"),
    ({**CPU2, "tp": 2, "tensor-split": "0,0"}, "gives no device anything", "one share must be above 0"),
    ({**CPU2, "tp": 2, "tensor-split": "2,-1"}, "tensor-split = 2,-1", "shares must be 0 or more"),
    ({**CPU2, "tp": 2, "tensor-split": "nan,1"}, "tensor-split = nan,1", "shares must be 0 or more"),
    ({**CPU2, "tp": 2, "tensor-split": "inf,1"}, "tensor-split = inf,1", "shares must be 0 or more"),
    ({**CPU2, "tp": 2, "tensor-split": "1e999,1"}, "tensor-split = inf,1", "shares must be 0 or more"),
    ({**CPU2, "layer-split": 2, "tensor-split": "1.5,0.5"}, "tensor-split = '1.5,0.5'", "whole numbers of layers"),
    ({**CPU2, "layer-split": 2, "tensor-split": "1"}, "layer counts 1 are for 1 devices", "the split has 2"),
    ({**CPU2, "layer-split": 2, "tensor-split": "1,2"}, "layer counts 1,2", "as a ratio that is 1,1"),
    ({**CPU2, "layer-split": 2, "tensor-split": "3,1"}, "layer counts 3,1", "as a ratio that is 2,0"),
    ({**CPU2, "layer-split": 2, "tensor-split": "3,-1"}, "layer counts 3,-1", "0 or more that sum to 2"),
    # experts
    ({"expert-split": "experts"}, "--expert-split experts", "needs --tp, which cuts"),
    ({**CPU2, "layer-split": 2, "expert-split": "experts"}, "--expert-split experts", "needs --tp"),
    ({**CPU2, "tp": 2, "expert-split": "experts"}, "the model has no experts", "'inside' is the default"),
    ({**CPU2, "tp": 2, "expert-split": "some"}, "is 'some'", "one of inside, experts is needed"),
    # what sums travel as
    ({"reduce-dtype": "bf16"}, "--reduce-dtype bf16", "needs --tp, whose ranks sum"),
    ({**CPU2, "layer-split": 2, "reduce-dtype": "f16"}, "--reduce-dtype f16", "needs --tp, whose ranks sum"),
    ({**CPU2, "tp": 2, "reduce-dtype": "q8_0"}, "is 'q8_0'", "one of f32, bf16, f16 is needed"),
    # memory that stays free
    ({"reserve": "1,2"}, "reserve = 1,2 has 2 numbers of MiB", "there is 1 device for them (cpu)"),
    ({**CPU2, "tp": 2, "reserve": "1,2,3"}, "has 3 numbers of MiB", "there are 2 devices for them (cpu, cpu)"),
    ({**CPU2, "layer-split": 2, "reserve": "0,0,0"}, "has 3 numbers of MiB", "one number counts for all"),
    ({"reserve": -1}, "is '-1'", "whole numbers with commas between them are needed, each at least 0"),
    ({"reserve": "1GiB"}, "is '1GiB'", "whole numbers with commas between them are needed"),
    ({"reserve": 0.5}, "is '0.5'", "whole numbers with commas between them are needed"),
    ({"reserve": 10**9}, "0 are free beside 1000000000 MiB in reserve", "nothing on this machine fits it"),
    # numbers and words
    ({"tp": 0}, "is '0'", "a whole number is needed, at least 1"),
    ({"tp": -2}, "is '-2'", "a whole number is needed, at least 1"),
    ({"tp": "two"}, "is 'two'", "a whole number is needed, at least 1"),
    ({"tp": 1.5}, "is '1.5'", "a whole number is needed, at least 1"),
    ({"layer-split": 0}, "is '0'", "a whole number is needed, at least 1"),
    ({"layer-split": "2,2"}, "is '2,2'", "a whole number is needed, at least 1"),
    ({"ctx": 0}, "is '0'", "a whole number is needed, at least 64"),
    ({"ctx": "4k"}, "is '4k'", "a whole number is needed, at least 64"),
    ({"ctx": 10**12}, "ctx = 1000000000000 with 1 slots needs ", "these fit: --ctx "),
    ({**CPU2, "tp": 2, "ctx": 10**12}, "ctx = 1000000000000 with 1 slots needs ", "--device cpu,cpu --tp 2 --ctx "),
    ({"batch": 0}, "is '0'", "a whole number is needed, at least 1"),
    ({"threads": 0}, "is '0'", "a whole number is needed, at least 1"),
    ({"fit": "maybe"}, "is 'maybe'", "one of off, auto is needed"),
    ({"cache-type-k": "q3_k"}, "is 'q3_k'", "one of f32, f16, bf16, q8_0, q4_0 is needed"),
]  # fmt: skip
NAMES = [" ".join(f"{name}={value}"[:40] for name, value in options.items()) for options, _, _ in REFUSALS]

SOME = [row for row in REFUSALS if "ctx" not in row[0]][::4]


@pytest.fixture
def model(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny model of two layers; reading a weight is an error that no refusal looks like, and there are no GPUs."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("pyggml.engine.weights.Weights.__init__", fail)
    monkeypatch.setattr(gg, "discrete_gpus", list)
    monkeypatch.setattr(gg, "default_device", lambda: gg.device("cpu"))
    return tiny("llama")


def check(result: Result, wrong: str, works: str) -> None:
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert wrong in result.err
    assert works in result.err
    assert is_listed(result.err), "docs/troubleshooting.md does not have it"


def flags(options: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


@pytest.mark.parametrize(("options", "wrong", "works"), REFUSALS, ids=NAMES)
def test_on_the_command_line(
    options: dict[str, Any], wrong: str, works: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "run", model, "hi", *flags(options))
    check(result, wrong, works)
    assert result.out == ""


@pytest.mark.parametrize(("options", "wrong", "works"), REFUSALS, ids=NAMES)
def test_in_the_environment(
    options: dict[str, Any], wrong: str, works: str, model: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in options.items():
        monkeypatch.setenv("PYGGML_" + name.upper().replace("-", "_"), str(value))
    check(call(capsys, "run", model, "hi"), wrong, works)


@pytest.mark.parametrize(("options", "wrong", "works"), REFUSALS, ids=NAMES)
def test_in_an_option_file(
    options: dict[str, Any], wrong: str, works: str, model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "c.json"
    path.write_text(json.dumps(options))
    check(call(capsys, "run", model, "hi", "--config", path), wrong, works)


@pytest.mark.parametrize(
    ("flag", "variable", "key", "named"),
    [
        ({"tp": 2}, {"layer-split": 2}, {}, ("--tp", "PYGGML_LAYER_SPLIT")),
        ({"layer-split": 2}, {"tp": 2}, {}, ("--layer-split", "PYGGML_TP")),
        ({"tp": 2}, {}, {"layer-split": 2}, ("--tp", "c.json: layer-split")),
        ({}, {"tp": 2}, {"layer-split": 2}, ("PYGGML_TP", "c.json: layer-split")),
        ({}, {}, {"tp": 2, "layer-split": 2}, ("c.json: tp", "c.json: layer-split")),
    ],
    ids=str,
)
def test_both_places_of_excluding_options_are_named(
    flag: dict[str, int], variable: dict[str, int], key: dict[str, int], named: tuple[str, str], model: Path,
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(key))
    for name, value in variable.items():
        monkeypatch.setenv("PYGGML_" + name.upper().replace("-", "_"), str(value))
    result = call(capsys, "run", model, "hi", "--config", tmp_path / "c.json", *flags(flag))
    check(result, "exclude each other", "give one of them")
    assert all(name in result.err for name in named)


@pytest.mark.parametrize(
    "command",
    [
        ("bench", "{model}"),
        ("eval", "logits", "{model}", "--tokens", "1", "--out", "{folder}/l.npy"),
        ("plan", "{model}", "--no-measure"),
        ("serve", "{model}", "--port", "0"),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(("options", "wrong", "works"), SOME)
def test_every_command_refuses_alike(
    options: dict[str, Any], wrong: str, works: str, command: tuple[str, ...], model: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = [part.format(model=model, folder=tmp_path) for part in command]
    check(call(capsys, *arguments, *flags(options)), wrong, works)


@pytest.mark.parametrize("mode", [{}, {**CPU2, "tp": 2}, {**CPU2, "layer-split": 2}], ids=str)
def test_an_unknown_architecture_is_refused_in_every_mode(
    mode: dict[str, Any], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alien = tmp_path / "alien.gguf"
    alien.write_bytes(model.read_bytes().replace(b"llama", b"alien"))
    check(call(capsys, "run", alien, "hi", *flags(mode)), "architecture 'alien'", "llama")


@pytest.mark.parametrize("door", ["command line", "environment", "file"])
@pytest.mark.parametrize("name", ["H200", "GPU-2222", "cuda"])
def test_a_name_of_several_devices_is_refused_with_all_of_them(
    name: str, door: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    cards = [
        gg.Device(f"cuda:{i}", "NVIDIA H200", "gpu", f"0000:0{i}:00.0", 2**34, "cuda", None) for i in range(2)
    ]
    cpu = gg.device("cpu")
    monkeypatch.setattr(sys.modules["pyggml.device"], "devices", lambda: (cpu, *cards))
    monkeypatch.setattr("pyggml.card_uuid.card_uuid", lambda bus_id: f"GPU-2222{bus_id[6]}")
    arguments: list[Any] = ["run", model, "hi"]
    if door == "command line":
        arguments += ["--device", name]
    elif door == "environment":
        monkeypatch.setenv("PYGGML_DEVICE", name)
    else:
        (tmp_path / "c.json").write_text(json.dumps({"device": name}))
        arguments += ["--config", tmp_path / "c.json"]
    works = "fits cuda:0 (NVIDIA H200 at 0000:00:00.0), cuda:1 (NVIDIA H200 at 0000:01:00.0); name one of them"
    check(call(capsys, *arguments), f"device '{name}'", works)


@pytest.mark.parametrize(
    ("options", "n_cards", "visible", "said"),
    [
        ({"tp": 9}, 8, None, "shows 8 ({names}); --tp 8 works, or list devices, which may come more than once"),
        ({"layer_split": 3}, 2, "4,5", "2 ({names}) with CUDA_VISIBLE_DEVICES='4,5'; --layer-split 2 works, or list"),
        ({"tp": 3}, 2, "0,1,7", "shows 2 ({names}); --tp 2 works, or list devices"),
        ({"tp": 2}, 1, "0", "shows 1 ({names}) with CUDA_VISIBLE_DEVICES='0'; list devices"),
        ({"tp": 2}, 0, "", "shows 0 (none) with CUDA_VISIBLE_DEVICES=''; list devices"),
    ],
)
def test_too_few_cards_are_refused_with_how_many_work_and_what_hides_others(
    options: dict[str, int], n_cards: int, visible: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = [
        gg.Device(f"cuda:{i}", "NVIDIA H200", "gpu", f"0000:0{i}:00.0", 2**34, "cuda", None)
        for i in range(n_cards)
    ]
    monkeypatch.setattr(gg, "discrete_gpus", lambda: cards)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError) as refused:
        LoadOptions(**options).devices()  # type: ignore[arg-type]
    assert said.format(names=", ".join(card.name for card in cards)) in str(refused.value)
    assert is_listed(str(refused.value))


@pytest.mark.parametrize(
    ("changed", "offered"),
    [({"n_layer": 9}, ", or with --layer-split 8"), ({"n_layer": 1}, ""), ({"n_layer": 9, "n_embd_per_layer": 8}, "")],
    ids=str,
)
def test_a_refused_degree_offers_a_layer_split_where_one_works(changed: dict[str, int], offered: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_of(numbers(n_head=4, n_head_kv=2, n_ff=512, **changed), even(8), Q4_K)
    assert str(refused.value).endswith(f"; this file works with tp 1, 2{offered}")


@pytest.mark.parametrize(
    ("n", "changed", "works"),
    [
        (2, {}, "--tp 2 cuts inside layers"),
        (3, {}, "this file works with --tp 2"),
        (2, {"n_head": 1, "n_head_kv": 1, "n_ff": 256}, "this file works on one device"),
    ],
)
def test_a_refused_layer_split_offers_the_degrees_that_work(n: int, changed: dict[str, int], works: str) -> None:
    model = facts(numbers(n_layer_kv=1, **changed), Q4_K)
    with pytest.raises(ConfigError) as refused:
        deal_model(model, LoadOptions(layer_split=n), gpus(n))
    assert str(refused.value) == (
        f"layer-split = {n} for llama: the last layers attend to keys and values of earlier ones in this model; {works}"
    )


@pytest.mark.parametrize(
    ("n_layer", "given", "ratio"),
    [
        (2, "3,1", "2,0"), (32, "3,1", "24,8"), (32, "1/1/1", "11,11,10"), (4, "2,2", None), (4, "0,0", ""),
        (4, "5,-2", ""),
    ],
)  # fmt: skip
def test_layers_given_as_a_ratio_are_refused_with_the_counts_that_it_is(
    n_layer: int, given: str, ratio: str | None
) -> None:
    model, n = facts(numbers(n_layer=n_layer)), len(given.replace("/", ",").split(","))
    options = LoadOptions(layer_split=n, tensor_split=given)
    if ratio is None:
        assert deal_model(model, options, gpus(n)).notes == ("layers dealt as given: 2,2",)
        return
    shown = given.replace("/", ",")
    needed = f"layer counts {shown}; counts of 0 or more that sum to {n_layer} layers are needed"
    with pytest.raises(ConfigError) as refused:
        deal_model(model, options, gpus(n))
    assert str(refused.value) == needed + (f"; as a ratio that is {ratio}" if ratio else "")


def test_repeats_of_one_device_are_no_mistake(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    result = call(capsys, "run", tiny("llama"), "abc", "-n", 2, "--raw", *flags({**CPU2, "tp": 2}), "--ctx", 64)
    assert result.status == 0
    assert result.err.startswith("Tensor parallelism: 2 ranks (cpu, cpu)\n")


def test_transports_are_those_there_are_and_others_are_refused(tiny: Callable[..., Path]) -> None:
    assert TRANSPORTS == ("auto", *BUILT)
    (option,) = (o for o in OPTIONS if o.name == "transport")
    assert [option.kind.read(name) for name in TRANSPORTS] == list(TRANSPORTS)
    supported = "auto, push, nccl, push-shm, nccl-shm and host are supported"
    with pytest.raises(ConfigError, match=f"transport = 'rdma'; {supported}"):
        LoadOptions(transport="rdma")
    path = tiny("llama")
    with LLM(path, device="cpu,cpu", tp=2, ctx=64, transport="host") as llm:
        assert llm.generate("a", max_tokens=2).stats.n_generated
    with pytest.raises(gg.DeviceError, match="host"):
        LLM(path, device="cpu,cpu", tp=2, ctx=64, transport="push")
