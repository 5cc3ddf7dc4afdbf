"""`pyggml inspect`: what a file is, and what it lacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_calls import call
from tiny_families import write_family


def inspected(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    result = call(capsys, "inspect", *arguments, "--json")
    assert (result.status, result.err) == (0, "")
    document: dict[str, Any] = json.loads(result.out)
    return document


def test_numbers_types_and_sampling_of_a_model(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny("gemma3", quant="Q4_0")
    document = inspected(capsys, path)
    assert document["architecture"] == "gemma3"
    assert (document["n_layer"], document["n_embd"], document["n_head_kv"], document["n_swa"]) == (
        7,
        256,
        1,
        8,
    )
    assert (document["n_vocab"], document["n_ctx_train"]) == (320, 4096)
    assert sum(of["n_tensors"] for of in document["types"].values()) == document["n_tensors"]
    assert sum(of["n_bytes"] for of in document["types"].values()) == document["n_bytes"]
    assert document["types"].keys() == {"q4_0", "f32"}
    assert document["tokenizer"] == {"model": "gpt2", "pre": "gpt-2", "n_tokens": 320}
    assert document["sampling"]["top_k"] == 40
    assert document["has_chat_template"] and document["is_supported"] and not document["obstacles"]


def test_modes_that_work_and_why_others_do_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def modes(arch: str, variant: str = "") -> dict[str, Any]:
        path = write_family(tmp_path / f"{arch}{variant}.gguf", arch, variant=variant)
        found: dict[str, Any] = inspected(capsys, path)["modes"]
        return found

    assert modes("smollm3") == {
        "tp": list(range(2, 17)), "tp_obstacle": "", "layer_split": [2, 3, 4], "layer_split_obstacle": "",
    }  # fmt: skip
    wide = modes("minimax-m2")
    assert wide["tp"] == [2] and "K is normed over its 2 heads at once" in wide["tp_obstacle"]
    small = modes("gemma4", "small")
    assert small["layer_split"] == [] and "the embedding on the first device" in small["layer_split_obstacle"]
    page = call(capsys, "inspect", tmp_path / "gemma4small.gguf").out
    assert "modes          one device\n               --tp 2" in page
    assert "no --layer-split: each layer needs what the embedding on the first device says" in page


def test_all_shards_are_counted(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    documents = [inspected(capsys, tiny("llama", **more)) for more in ({}, {"n_shards": 3})]
    assert [document["files"] for document in documents] == [1, 3]
    assert documents[0]["n_bytes"] == documents[1]["n_bytes"]


def test_tensors_are_listed_when_asked_for(
    tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    document = inspected(capsys, tiny("llama"), "--tensors")
    assert len(document["tensors"]) == document["n_tensors"]
    assert {"name": "token_embd.weight", "shape": [320, 256], "type": "f32", "n_bytes": 327680} in document[
        "tensors"
    ]


def test_missing_tensors_are_named(tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    omit = ("blk.0.attn_q.weight", "blk.1.ffn_up.weight")
    document = inspected(capsys, tiny("llama", omit=omit))
    assert not document["is_supported"]
    assert document["missing_tensors"] == list(omit)
    assert document["obstacles"] == ["2 tensors missing: blk.0.attn_q.weight, blk.1.ffn_up.weight"]


@pytest.mark.parametrize(
    ("before", "after", "obstacle"),
    [
        (b"llama", b"alien", "architecture 'alien'; supported are"),
        (b"llama", b"mamba", "architecture 'mamba' needs a state of each sequence (recurrent layers)"),
        (b"gpt-2", b"gpt-9", "gpt-9"),
        (b"gpt2", b"gpt9", "tokenizer 'gpt9'"),
    ],
)
def test_what_is_not_known_is_an_obstacle_and_no_failure(
    before: bytes, after: bytes, obstacle: str, tiny: Callable[..., Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = tmp_path / "changed.gguf"
    path.write_bytes(tiny("llama").read_bytes().replace(before, after))
    document = inspected(capsys, path)
    assert not document["is_supported"]
    assert any(obstacle in line for line in document["obstacles"])
    assert document["n_layer"] == 2


def test_a_broken_template_is_said(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(tiny("llama").read_bytes().replace(b"{% endfor %}", b"{% endfoo %}"))
    assert "endfoo" in inspected(capsys, path)["chat_template_error"]


def test_the_page_is_for_people_and_cannot_steer_their_terminal(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "named.gguf"
    path.write_bytes(tiny("llama").read_bytes().replace(b"tiny llama", b"\x1b]0;evil!\x07"))
    result = call(capsys, "inspect", path, "--tensors")
    assert result.out.startswith("name           \\x1b]0;evil!\\x07")
    assert "\x1b" not in result.out
    assert "blk.1.ffn_down.weight" in result.out
