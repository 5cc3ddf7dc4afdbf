"""The exact public names of the packages; each of them says what it is."""

from __future__ import annotations

import enum
import inspect
import types
from typing import Any, get_args

import pytest

import pyggml
import pyggml.engine
import pyggml.server

BINDING = """
AllocationError Allocator Backend Buffer BuildError CHOSEN Candidates ClosedError ComputeError DType Device
DeviceError GGUF GGUFError GGUFTensor GGUFWriter GgmlError Graph Group GroupGraph HAS_INF HAS_NAN KernelTrace
MIN_NARROW_ELEMENTS ModuleProblem NONE_LEFT PyggmlError RankGraph Relay ShapeError Tensor Turns Work add add_id
are_graphs_on argmax cast chosen_candidates clamp concat cont copy default_device default_threads dequantize device
devices discrete_gpus div dtype exp flash_attn geglu gelu get_rows hadamard log mask_disallowed merged_candidates
module_problems mul
mul_mat mul_mat_id neg norm permute quantize reduce_dtype_for relu repeat reshape rms_norm rope scale set_rows sigmoid
silu soft_max sqr sqrt sub sum_rows swiglu swiglu_oai tanh top_candidates top_k view
""".split()

ENGINE = """
ChatFormat ChatPrompt Completion ConfigError Delta DeviceLost DownloadError EngineError EngineStatus FinishReason
GenerationError LLM MissingTensor Model ModelError Placement PlanError PrefixStatus PromptTooLong QueueFull RequestError
SamplingParams SlotStatus Stats Stream Submission TemplateError TokenLogprob ToolCall ToolCallDelta
UnsupportedArchitecture UnsupportedTokenizer UnsupportedValue
""".split()

SERVER = ["ReplicaOptions", "ServerOptions", "StartError", "serve"]

PACKAGES = {
    "pyggml": (pyggml, BINDING),
    "pyggml.engine": (pyggml.engine, ENGINE),
    "pyggml.server": (pyggml.server, SERVER),
}


@pytest.mark.parametrize("name", PACKAGES)
def test_the_public_names_are(name: str) -> None:
    package, names = PACKAGES[name]
    assert sorted(package.__all__) == sorted(names)


@pytest.mark.parametrize("name", PACKAGES)
def test_nothing_public_is_missing_from_the_list(name: str) -> None:
    package, names = PACKAGES[name]
    others = {
        n
        for n, value in vars(package).items()
        if not n.startswith("_") and n not in names and not isinstance(value, types.ModuleType)
    }
    assert others <= {"annotations"}


def public_objects() -> list[tuple[str, Any]]:
    return [
        (f"{name}.{n}", getattr(package, n)) for name, (package, names) in PACKAGES.items() for n in names
    ]


def methods(owner: type) -> list[tuple[str, Any]]:
    """Public methods and properties that a class defines itself."""
    found = []
    for name, value in vars(owner).items():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not name.startswith("_") and inspect.isfunction(inner):
            found.append((name, inner))
    return found


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=[name for name, _ in public_objects()])
def test_every_public_name_is_documented(name: str, value: Any) -> None:
    if isinstance(value, int) or get_args(value):
        return  # codes and unions of words are documented where they are used
    undocumented = [] if own_docstring(value) else [name]
    if inspect.isclass(value) and not issubclass(value, (Exception, enum.Enum)):
        undocumented += [f"{name}.{method}" for method, function in methods(value) if not function.__doc__]
    assert not undocumented


def own_docstring(value: Any) -> str | None:
    """A class's own words: dataclasses and tuples get a signature for a docstring by themselves."""
    words = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return None if words and words.startswith(f"{value.__name__}(") else words


@pytest.mark.parametrize(("name", "value"), public_objects(), ids=[name for name, _ in public_objects()])
def test_public_functions_are_typed(name: str, value: Any) -> None:
    functions = (
        [(name, value)] if inspect.isfunction(value) else methods(value) if inspect.isclass(value) else []
    )
    for where, function in functions:
        signature = inspect.signature(function)
        untyped = [
            p
            for p in signature.parameters.values()
            if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        assert not untyped and signature.return_annotation is not signature.empty, where
