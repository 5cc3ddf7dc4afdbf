"""examples/requantize_gguf.py as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pyggml import GGUF, dequantize, quantize
from pyggml.gguf_writer import GGUFWriter

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "requantize_gguf.py"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(2)
    metadata = {"general.architecture": "llama", "general.file_type": 0, "tokenizer.ggml.tokens": ["a", "b"]}
    path = tmp_path / "in.gguf"
    with GGUFWriter(path, metadata) as writer:
        writer.add_tensor("token_embd.weight", rng.standard_normal((8, 256), np.float32))
        writer.add_tensor("blk.0.ffn_down_exps.weight", rng.standard_normal((2, 3, 256), np.float32), "f16")
        writer.add_tensor("blk.0.attn_norm.weight", rng.standard_normal(256, np.float32))
        writer.add_tensor("blk.0.odd.weight", rng.standard_normal((4, 33), np.float32))
    return path


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLE, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kind", ["q8_0", "q4_k", "f16"])
def test_matrices_are_stored_in_the_type_asked_for(kind: str, source: Path, tmp_path: Path) -> None:
    done = _run(source, tmp_path / "out.gguf", "--type", kind, "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert f"1/4 token_embd.weight (8, 256): f32 -> {kind}" in done.stdout
    with GGUF(source) as old, GGUF(tmp_path / "out.gguf") as new:
        assert list(new) == list(old)
        for name in ("token_embd.weight", "blk.0.ffn_down_exps.weight"):
            wanted = dequantize(quantize(old[name].numpy(), kind), kind, old[name].shape)
            assert new[name].type.name == kind
            assert np.array_equal(new[name].numpy(), wanted)


def test_vectors_odd_rows_and_metadata_stay(source: Path, tmp_path: Path) -> None:
    assert _run(source, tmp_path / "out.gguf").returncode == 0
    with GGUF(source) as old, GGUF(tmp_path / "out.gguf") as new:
        assert new.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
        assert "general.file_type" not in new.metadata
        assert new["blk.0.attn_norm.weight"].data.tobytes() == old["blk.0.attn_norm.weight"].data.tobytes()
        same, kept = new["blk.0.odd.weight"], old["blk.0.odd.weight"]
        assert (same.type.name, same.data.tobytes()) == ("f32", kept.data.tobytes())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["none.gguf", "out.gguf"], "none.gguf"), (["in.gguf", "out.gguf", "--type", "q9_9"], "q4_k")],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: list[str], message: str, source: Path) -> None:
    done = _run(*(source.parent / a if a.endswith(".gguf") else a for a in arguments))
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
