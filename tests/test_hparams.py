"""Metadata and options that make no sense: refused by name, with the value and what would work."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from gguf import GGUFWriter

from pyggml.engine import LLM, ConfigError, ModelError
from pyggml.engine import loading as loading_module
from pyggml.engine.hparams import HParams
from pyggml.engine.load_options import LoadOptions
from pyggml.engine.models import family

NAN, INF = math.nan, math.inf
SOUND: dict[str, Any] = {
    "block_count": 6,
    "context_length": 4096,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
EXPERTS: dict[str, Any] = {"expert_count": 8, "expert_used_count": 2}
YARN: dict[str, Any] = {"rope.scaling.type": "yarn"}
WINDOW: dict[str, Any] = {"attention.sliding_window": 8}
PATTERN = "attention.sliding_window_pattern"


def hparams(arch: str, **keys: Any) -> HParams:
    """What a family reads of a sound model with these keys changed; None takes a key away."""
    merged = {f"{arch}.{key}": value for key, value in (SOUND | keys).items() if value is not None}
    return family(arch).hparams(merged, arch, 320)


# architecture, the key and its value, other keys, what would work
ODD: list[tuple[str, str, Any, dict[str, Any], str]] = [
    ("llama", "embedding_length", "x", {}, "a whole number, 1 to 2147483647"),
    ("llama", "embedding_length", 256.5, {}, "a whole number"),
    ("llama", "embedding_length", True, {}, "a whole number"),
    ("llama", "embedding_length", 0, {}, "1 to"),
    ("llama", "block_count", 4097, {}, "1 to 4096"),
    ("llama", "block_count", 0, {}, "1 to 4096"),
    ("llama", "block_count", -1, {}, "1 to 4096"),
    ("llama", "context_length", 2**31 + 1, {}, "1 to 2147483647"),
    ("llama", "context_length", 0, {}, "1 to"),
    ("llama", "feed_forward_length", 0, {}, "1 to"),
    ("llama", "feed_forward_length", [0] * 6, {}, "1 to"),
    ("llama", "feed_forward_length", ["x"] * 6, {}, "a whole number"),
    ("llama", "feed_forward_length", [], {}, "one value, or one a layer"),
    ("llama", "attention.head_count", 0, {}, "1 to 256"),
    ("llama", "attention.head_count", -4, {}, "1 to 256"),
    ("llama", "attention.head_count", 257, {}, "1 to 256"),
    ("llama", "attention.head_count_kv", 0, {}, "1 to 4"),
    ("llama", "attention.head_count_kv", -2, {}, "1 to 4"),
    ("llama", "attention.head_count_kv", 3, {}, "a divisor of head_count = 4"),
    ("llama", "attention.key_length", np.array([64, 64]), {}, "a whole number"),
    ("llama", "attention.key_length", 0, {}, "1 to"),
    ("llama", "attention.value_length", [64], {}, "a whole number"),
    ("llama", "attention.layer_norm_rms_epsilon", -1e-5, {}, "a finite number, at least 0"),
    ("llama", "attention.layer_norm_rms_epsilon", NAN, {}, "a finite number, at least 0"),
    ("llama", "attention.scale", NAN, {}, "a finite number"),
    ("llama", "attention.scale", True, {}, "a finite number"),
    ("llama", "expert_count", "q", {}, "a whole number"),
    ("llama", "expert_count", -1, {}, "0 to"),
    ("llama", "expert_used_count", 9, EXPERTS, "1 to 8"),
    ("llama", "expert_used_count", 0, EXPERTS, "1 to 8"),
    ("llama", "feed_forward_length", 0, EXPERTS, "1 to"),
    ("llama", "expert_weights_scale", INF, EXPERTS, "a finite number"),
    ("llama", "rope.dimension_count", 63, {}, "an even number, 2 to 64"),
    ("llama", "rope.dimension_count", 66, {}, "2 to 64"),
    ("llama", "rope.dimension_count", 0, {}, "2 to 64"),
    ("llama", "rope.dimension_count", "x", {}, "a whole number"),
    ("llama", "rope.freq_base", 0.0, {}, "a finite number, above 0"),
    ("llama", "rope.freq_base", -1.0, {}, "above 0"),
    ("llama", "rope.freq_base", INF, {}, "a finite number"),
    ("llama", "rope.freq_base", NAN, {}, "a finite number"),
    ("llama", "rope.freq_base", 1e39, {}, "a finite number"),
    ("llama", "rope.scaling.factor", "abc", {}, "a finite number, at least 0"),
    ("llama", "rope.scaling.factor", -2.0, {}, "at least 0"),
    ("llama", "rope.scaling.factor", NAN, YARN, "a finite number"),
    ("llama", "rope.scaling.factor", INF, YARN, "a finite number"),
    ("llama", "rope.scale_linear", -2.0, {}, "at least 0"),
    ("llama", "rope.scaling.yarn_ext_factor", NAN, YARN, "a finite number"),
    ("llama", "rope.scaling.attn_factor", 0.0, YARN, "above 0"),
    ("llama", "rope.scaling.yarn_beta_slow", 0.0, YARN, "above 0"),
    ("llama", "rope.scaling.original_context_length", -1, YARN, "0 to"),
    ("gemma3", "attention.sliding_window", -1, {}, "0 to"),
    ("gemma3", PATTERN, 0, WINDOW, "1 to"),
    ("gemma3", PATTERN, "x", WINDOW, "a whole number"),
    ("gemma3", PATTERN, [True] * 5, WINDOW, "6 truth values, one a layer"),
    ("gemma3", PATTERN, np.array([2] * 6), WINDOW, "6 truth values"),
    ("gemma3", PATTERN, ["x"] * 6, WINDOW, "6 truth values"),
    ("gemma3", "rope.freq_base_swa", 0.0, WINDOW, "above 0"),
    ("gemma3", "final_logit_softcapping", INF, {}, "a finite number"),
    ("gemma3", "final_logit_softcapping", NAN, {}, "a finite number"),
]


def shown(value: Any) -> str:
    return repr(value.tolist() if isinstance(value, np.ndarray) else value)


@pytest.mark.parametrize(
    ("arch", "key", "value", "others", "needed"), ODD, ids=[f"{odd[1]}={shown(odd[2])}" for odd in ODD]
)
def test_odd_value_is_refused_by_key_value_and_what_would_work(
    arch: str, key: str, value: Any, others: dict[str, Any], needed: str
) -> None:
    with pytest.raises(ModelError) as refusal:
        hparams(arch, **(others | {key: value}))
    message = str(refusal.value)
    assert f"{arch}.{key} = " in message and needed in message
    of_a_layer = value[0] if key == "feed_forward_length" and isinstance(value, list) and value else value
    assert shown(of_a_layer) in message


@pytest.mark.parametrize("key", ["block_count", "context_length", "embedding_length", "feed_forward_length"])
def test_missing_key_is_refused_by_name(key: str) -> None:
    with pytest.raises(ModelError, match=f"lacks the key llama.{key}"):
        hparams("llama", **{key: None})


@pytest.mark.parametrize("kind", ["dynamic", 3, np.array([1, 2])])
def test_unknown_scaling_is_refused(kind: Any) -> None:
    with pytest.raises(ModelError, match=r"llama.rope.scaling.type = .*; none, linear, yarn and longrope"):
        hparams("llama", **{"rope.scaling.type": kind})


def test_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(ModelError) as refusal:
        hparams("llama", embedding_length="x" * 10**6)
    assert len(str(refusal.value)) < 200


ALLOWED: list[tuple[str, dict[str, Any], str, Any]] = [
    ("llama", {"rope.scaling.factor": 0.0}, "rope.freq_scale", 1.0),
    ("llama", {"rope.scaling.factor": 0.0} | YARN, "rope.freq_scale", 1.0),
    ("llama", {"rope.scale_linear": 4}, "rope.freq_scale", 0.25),
    ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, "rope.freq_scale", 1.0),
    ("llama", {"rope.scaling.yarn_ext_factor": -1.0} | YARN, "rope.ext_factor", 1.0),
    ("llama", {"rope.scaling.original_context_length": 0} | YARN, "rope.n_ctx_orig", 4096),
    ("llama", {"attention.scale": 0.0}, "attn_scale", 0.125),
    ("llama", {"attention.layer_norm_rms_epsilon": 0.0}, "norm_eps", 0.0),
    ("llama", {"attention.head_count_kv": np.array([2] * 6)}, "n_head_kv", 2),
    ("llama", {"block_count": 4096}, "n_layer", 4096),
    ("llama", {"expert_feed_forward_length": 128, "feed_forward_length": None} | EXPERTS, "n_ff_exp", 128),
    ("gemma3", {PATTERN: 3} | WINDOW, "is_swa", (True, True, False) * 2),
    ("gemma3", {PATTERN: np.array([True, False] * 3)} | WINDOW, "is_swa", (True, False) * 3),
    ("gemma3", {PATTERN: [1, 0] * 3} | WINDOW, "is_swa", (True, False) * 3),
]


@pytest.mark.parametrize(("arch", "keys", "name", "wanted"), ALLOWED)
def test_value_at_a_limit_is_read(arch: str, keys: dict[str, Any], name: str, wanted: Any) -> None:
    found: Any = hparams(arch, **keys)
    for part in name.split("."):
        found = getattr(found, part)
    assert found == wanted


@pytest.mark.parametrize(
    ("add", "key"),
    [
        (lambda w: w.add_string("llama.embedding_length", "x"), "embedding_length"),
        (lambda w: w.add_array("llama.attention.key_length", [64, 64]), "attention.key_length"),
        (lambda w: w.add_float32("llama.rope.freq_base", math.nan), "rope.freq_base"),
    ],
)
def test_odd_file_is_refused_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, add: Any, key: str
) -> None:
    def changed(writer: GGUFWriter, *given: Any) -> None:
        write_metadata(writer, *given)
        writer.kv_data[0].pop(f"llama.{key}", None)
        add(writer)

    def read(*given: Any) -> None:
        raise AssertionError("weights were read")

    write_metadata = tiny.write_metadata
    monkeypatch.setattr(tiny, "write_metadata", changed)
    path = tiny.write_tiny(tmp_path / "odd.gguf", "llama")
    monkeypatch.setattr(loading_module, "Weights", read)
    with pytest.raises(ModelError, match=f"llama.{key} = "):
        LLM(path, device="cpu", threads=1, ctx=64)


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("ctx", "12", "ctx = '12'; a whole number is needed, at least 64"),
    ("ctx", 64.0, "ctx = 64.0; a whole number is needed"),
    ("parallel", 1.5, "parallel = 1.5; a whole number is needed, at least 1"),
    ("parallel", None, "parallel = None; a whole number"),
    ("threads", True, "threads = True; a whole number"),
    ("batch", "x", "batch = 'x'; a whole number"),
    ("tp", "2", "tp = '2'; a whole number"),
    ("layer_split", [1, 1], "layer-split = [1, 1]; a whole number"),
    ("device", 0, "device = 0; text is needed, such as 'cpu'"),
    ("tensor_split", (3, 1), "tensor-split = (3, 1); text is needed, such as '3,1'"),
    ("expert_split", None, "expert-split = None; text is needed"),
    ("cache_type_k", 16, "cache-type-k = 16; text is needed, such as 'f16'"),
    ("fit", True, "fit = True; text is needed, such as 'auto'"),
]


@pytest.mark.parametrize(("option", "value", "message"), WRONG_TYPES)
def test_option_of_a_wrong_type_is_refused(option: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        LoadOptions(**{option: value})
    assert message in str(refusal.value)


@pytest.mark.parametrize("option", ["parallel", "batch", "threads", "tp", "layer_split"])
def test_option_below_its_least_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option.replace('_', '-')} = 0; at least 1 is needed"):
        LoadOptions(**{option: 0})


def test_whole_numbers_of_numpy_are_options() -> None:
    assert LoadOptions(ctx=np.int32(64)).ctx == 64  # type: ignore[arg-type]
