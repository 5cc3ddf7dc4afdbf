"""Which files of a repository are models, of which quantisation, and which one is taken."""

from __future__ import annotations

import re

import pytest

from pyggml.engine import ConfigError
from pyggml.engine.downloads.model_address import HubAddress, WebAddress, model_address
from pyggml.engine.downloads.variant import RemoteFile, label_of, largest, named, variants

SHARDS = [f"Q6_K/m-Q6_K-{i:05}-of-00003.gguf" for i in (1, 2, 3)]


def files(*paths: str, **sizes: int) -> list[RemoteFile]:
    return [RemoteFile(path, sizes.get(path, 100 - i), "") for i, path in enumerate(paths)]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("gemma-3-270m-q4_k_m.gguf", "Q4_K_M"),
        ("x.IQ2_XXS.gguf", "IQ2_XXS"),
        ("x.i1-Q4_K_S.gguf", "Q4_K_S"),
        ("m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("ggml-model-f16.gguf", "F16"),
        ("m-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("m-TQ1_0.gguf", "TQ1_0"),
        ("m-IQ4_NL.gguf", "IQ4_NL"),
        ("m-Q4_K_M-v2.gguf", "Q4_K_M"),
        ("m-f16.q6_K.gguf", "Q6_K"),
        ("BF16/m-00001-of-00002.gguf", "BF16"),
        ("Q8_0/m-Q4_0-00001-of-00002.gguf", "Q4_0"),
        ("model.gguf", ""),
        ("iq4x-m.gguf", ""),
    ],
)
def test_the_quantisation_of_a_file(path: str, label: str) -> None:
    assert label_of(path) == label


@pytest.mark.parametrize(
    "path",
    [
        "mmproj-F16.gguf", "mmproj.gguf", "x-mmproj-model-f16.gguf", "imatrix.gguf", "x-imatrix_unsloth.gguf",
        "m-Q8_0.bin", "m.imatrix.gguf", "ggml-vocab-llama.gguf", "control-vector.gguf", "MTP/mtp-m-Q8_0.gguf",
        "README.md", "adapter.gguf", "draft-m-Q8_0.gguf", "m-Q4_0_4_4.gguf", "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
    ],
)  # fmt: skip
def test_what_is_no_model(path: str) -> None:
    assert [v.label for v in variants(files(path, "m-Q4_0.gguf"))] == ["Q4_0"]


@pytest.mark.parametrize("path", ["Coder-Draft-0.6B-Q8_0.gguf", "Qwen3-MTP-Q8_0.gguf", "alpaca-lora-7b-Q8_0.gguf"])
def test_a_model_whose_name_has_such_a_word_is_one(path: str) -> None:
    assert [v.label for v in variants(files(path))] == ["Q8_0"]


def test_a_split_model_is_one_with_its_shards_in_order() -> None:
    (found,) = variants(files(*reversed(SHARDS)))
    assert (found.label, [f.path for f in found.files], found.n_bytes) == ("Q6_K", SHARDS, 99 + 98 + 100)


@pytest.mark.parametrize(
    ("choice", "path"),
    [("Q4_K_M", "b/m-Q4_K_M.gguf"), ("q4_k_m", "b/m-Q4_K_M.gguf"), ("m-Q8_0.gguf", "m-Q8_0.gguf"), ("Q6_K", SHARDS[0]),
     ("q3_k_xl", "m-UD-Q3_K_XL.gguf"), ("UD-Q3_K_XL", "m-UD-Q3_K_XL.gguf"), (SHARDS[1], SHARDS[0]),
     ("plain.gguf", "plain.gguf"), ("m-Q4_K_M.gguf", "b/m-Q4_K_M.gguf")],
)  # fmt: skip
def test_what_a_choice_names(choice: str, path: str) -> None:
    found = variants(files("m-Q8_0.gguf", "b/m-Q4_K_M.gguf", *SHARDS, "m-UD-Q3_K_XL.gguf", "plain.gguf"))
    assert named(found, choice, "hf:o/r").first.path == path


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("Q4_K_L", "hf:o/r has no Q4_K_L; did you mean Q4_K_M?; it has Q8_0, Q4_K_M"),
        ("x", "hf:o/r has no x; it has Q8_0, Q4_K_M"),
        ("mmproj-F16.gguf", "hf:o/r has no mmproj-F16.gguf"),
        ("Q8_0", "hf:o/r has 2 models of Q8_0; name the file behind the colon: a-Q8_0.gguf, b-Q8_0.gguf"),
    ],
)
def test_a_choice_that_is_none_is_refused_with_what_there_is(choice: str, message: str) -> None:
    found = variants(files("a-Q8_0.gguf", "b-Q8_0.gguf", "a-Q4_K_M.gguf", "mmproj-F16.gguf"))
    with pytest.raises(ConfigError, match=re.escape(message)):
        named(found, choice, "hf:o/r")


@pytest.mark.parametrize(("n_bytes", "label"), [(100, "F16"), (99, "Q8_0"), (98, "Q4_0")])
def test_the_largest_that_fits_is_taken(n_bytes: int, label: str) -> None:
    found = variants(files("m-F16.gguf", "m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj-F32.gguf"))
    assert largest(found, lambda v: "large" if v.n_bytes > n_bytes else "", "hf:o/r").label == label


def test_where_none_fits_the_smallest_is_told() -> None:
    found = variants([RemoteFile("m-F16.gguf", 3 << 30, ""), RemoteFile("m-Q4_0.gguf", 1 << 30, "")])
    message = "no model of hf:o/r fits: the smallest is Q4_0 with 1.00 GiB: too large; .*: F16, Q4_0"
    with pytest.raises(ConfigError, match=message):
        largest(found, lambda v: "too large", "hf:o/r")


def test_of_several_models_none_is_guessed() -> None:
    found = variants(files("a-Q8_0.gguf", "b-Q8_0.gguf", "a-Q4_0.gguf"))
    with pytest.raises(ConfigError, match="2 models of Q8_0"):
        largest(found, lambda v: "", "hf:o/r")


SUM = "a" * 64


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("hf:o/r", HubAddress("o/r")),
        ("hf:o/r.v1:Q4_K_M", HubAddress("o/r.v1", choice="Q4_K_M")),
        ("hf:o/r@v1:sub/x.gguf", HubAddress("o/r", "v1", "sub/x.gguf")),
        ("https://huggingface.co/o/r", HubAddress("o/r")),
        ("https://huggingface.co/o/r/tree/v1", HubAddress("o/r", "v1")),
        ("https://huggingface.co/o/r/blob/main/s%20b/x.gguf?download=true", HubAddress("o/r", choice="s b/x.gguf")),
        ("https://mirror.test/o/r/resolve/main/x.gguf", HubAddress("o/r", choice="x.gguf")),
        ("https://mirror.test/o/x.gguf", WebAddress("https://mirror.test/o/x.gguf")),
        ("http://h:8/x.gguf?k=1", WebAddress("http://h:8/x.gguf?k=1")),
        (f"http://h/x.gguf#sha256={SUM.upper()}", WebAddress("http://h/x.gguf", SUM)),
    ],
)
def test_what_a_name_is(name: str, address: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.test")
    assert model_address(name) == address


@pytest.mark.parametrize(
    "name",
    ["hf:o", "hf:o/r/x", "hf:../r", "hf:o/..", "hf:o/r:", "hf:o/r@../../x", "hf:/o/r", "http://h/x.bin", "http:///x.gguf",
     "https://huggingface.co/docs/hub/en/x", "http://h/x.gguf#sha256=abc", "http://h/x.gguf#md5=abc"],
)  # fmt: skip
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        model_address(name)


def test_an_address_is_shown_without_secrets() -> None:
    assert str(model_address("https://me:word@h:8/x.gguf?token=abc")) == "https://h:8/x.gguf"
