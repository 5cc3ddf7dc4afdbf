"""What sampling parameters accept and refuse, and where their defaults come from."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.engine.errors import RequestError, UnsupportedValue
from pyggml.engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 3),
        ("temperature", float("nan")),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("min_p", 2),
        ("top_k", 1.5),
        ("repeat_penalty", 0),
        ("repeat_last_n", -2),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -2.5),
        ("seed", 1.0),
        ("seed", 1 << 20000),
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("max_tokens", "5"),
        ("max_tokens", True),
        ("logprobs", 21),
        ("stop", [""]),
        ("stop", ""),
        ("stop", [5]),
        ("stop", 5),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {1: 101}),
        ("logit_bias", {1: float("inf")}),
        ("logit_bias", [1]),
        ("ignore_eos", 1),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_value_is_refused_by_name(name, value) -> None:
    with pytest.raises(RequestError, match=name) as refusal:
        SamplingParams(**{name: value})
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("given", "kept"), [("x", ("x",)), (["a", "b"], ("a", "b")), ([], ()), (None, ()), (("👍",), ("👍",))]
)
def test_stop_may_be_a_string_a_list_or_nothing(given, kept) -> None:
    assert SamplingParams(stop=given).stop == kept


def test_bias_keys_may_be_the_strings_of_json() -> None:
    assert SamplingParams(logit_bias={"7": 1}).logit_bias == {7: 1.0}


def test_the_request_overrides_the_file_which_overrides_the_defaults() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": np.float32(0.5),
        "general.sampling.penalty_repeat": 1.1,
        "general.sampling.penalty_last_n": 32,
        "general.name": "m",
    }
    params = SamplingParams.with_file_defaults(metadata, top_k=5, temperature=None, seed=3)
    assert params == SamplingParams(
        temperature=0.6, top_k=5, top_p=0.5, repeat_penalty=1.1, repeat_last_n=32, seed=3
    )


def test_a_files_unusable_defaults_are_the_files_fault() -> None:
    with pytest.raises(UnsupportedValue, match="temperature is -1"):
        SamplingParams.with_file_defaults({"general.sampling.temp": -1.0})
