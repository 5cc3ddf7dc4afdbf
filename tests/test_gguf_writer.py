"""What GGUFWriter writes: readable by others, complete or not there at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from pyggml import GGUF, GGUFError
from pyggml.dtypes import DTYPES
from pyggml.gguf_writer import GGUFWriter

RNG = np.random.default_rng(11)
METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": ["<s>", "▁a", ""],
    "tokenizer.ggml.token_type": [3, 1, 1],
    "tokenizer.ggml.add_bos_token": False,
}


def _values(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def test_gguf_reads_what_is_written(tmp_path: Path) -> None:
    w, v = _values(4, 64), np.arange(7, dtype=np.int32)
    with GGUFWriter(tmp_path / "m.gguf", METADATA) as writer:
        writer.add_tensor("w", w, "q8_0")
        writer.add_tensor("v", v)
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    found = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert found == METADATA
    assert reader.fields["tokenizer.ggml.token_type"].types[-1] == gguf.GGUFValueType.INT32
    back = gguf.dequantize(reader.get_tensor(0).data, gguf.GGMLQuantizationType.Q8_0)
    assert np.allclose(back, w, atol=0.02) and reader.get_tensor(1).data.tolist() == v.tolist()


@pytest.mark.parametrize("kind", [t.name for t in DTYPES if t.is_quantized or t.name == "bf16"])
def test_raw_bytes_of_every_type_come_back(kind: str, tmp_path: Path) -> None:
    type = next(t for t in DTYPES if t.name == kind)
    raw = RNG.integers(0, 256, 3 * 256 // type.block_size * type.type_size, np.uint8)
    with GGUFWriter(tmp_path / "m.gguf") as writer:
        writer.add_tensor("w", raw, kind, shape=(3, 256))
    with GGUF(tmp_path / "m.gguf") as file:
        assert (file["w"].type, file["w"].shape) == (type, (3, 256))
        assert file["w"].data.tobytes() == raw.tobytes()


@pytest.mark.parametrize("shape", [(5,), (1, 5), (1, 1, 1, 5), (2, 1), (0, 5), ()])
def test_shapes_come_back_unchanged(shape: tuple[int, ...], tmp_path: Path) -> None:
    values = np.asarray(_values(*shape), np.float32)
    with GGUFWriter(tmp_path / "m.gguf") as writer:
        writer.add_tensor("w", values)
    with GGUF(tmp_path / "m.gguf") as file:
        assert np.array_equal(file["w"].numpy(), values) and file["w"].shape == shape


@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_lie_at_the_alignment_asked_for(alignment: int, tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "m.gguf", {"general.alignment": alignment}) as writer:
        for name in "abc":
            writer.add_tensor(name, _values(3))
    with GGUF(tmp_path / "m.gguf") as file:
        assert file.alignment == alignment
        assert [t.offset % alignment for t in file.tensors.values()] == [0, 0, 0]
    assert os.path.getsize(tmp_path / "m.gguf") % alignment == 0


def test_a_tensor_of_another_file_is_copied_byte_for_byte(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "a.gguf", METADATA) as writer:
        writer.add_tensor("w", _values(4, 64), "q4_0")
    with GGUF(tmp_path / "a.gguf") as a:
        with GGUFWriter(tmp_path / "b.gguf", a.metadata, a.metadata.types) as writer:
            writer.add_tensor("w", a["w"])
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_tensor_of_another_file_is_converted_to_the_type_asked_for(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "a.gguf") as writer:
        writer.add_tensor("w", _values(4, 64), "q8_0")
    with GGUF(tmp_path / "a.gguf") as a, GGUFWriter(tmp_path / "b.gguf") as writer:
        writer.add_tensor("w", a["w"], "f32")
        wanted = a["w"].numpy()
    with GGUF(tmp_path / "b.gguf") as b:
        assert np.array_equal(b["w"].numpy(), wanted)


def test_functions_are_called_one_by_one_when_the_file_is_written(tmp_path: Path) -> None:
    calls: list[str] = []

    def make(name: str) -> np.ndarray:
        calls.append(name)
        return np.full((2, 32), len(calls), np.float32)

    with GGUFWriter(tmp_path / "m.gguf") as writer:
        for name in "ab":
            writer.add_tensor(name, lambda name=name: make(name), "f16", shape=(2, 32))
        assert calls == []
    with GGUF(tmp_path / "m.gguf") as file:
        assert (file["a"].numpy() == 1).all() and (file["b"].numpy() == 2).all()


def test_an_existing_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"old")

    def fail() -> np.ndarray:
        raise RuntimeError("no data")

    writer = GGUFWriter(path)
    writer.add_tensor("w", fail, "f32", shape=(4,))
    with pytest.raises(RuntimeError, match="no data"):
        writer.write()
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["m.gguf"]


def test_an_exception_in_the_block_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), GGUFWriter(tmp_path / "m.gguf") as writer:
        writer.add_tensor("w", _values(4))
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_a_gguf_error(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="No such file"):
        GGUFWriter(tmp_path / "none" / "m.gguf").write()


@pytest.mark.parametrize(
    ("key", "value", "kind", "problem"),
    [
        ("", 1, None, "printable ASCII"),
        ("größe", 1, None, "printable ASCII"),
        ("a", 256, "u8", "does not fit u8"),
        ("a", -1, "u32", "does not fit u32"),
        ("a", 0.5, "i32", "does not fit i32"),
        ("a", 2**64, None, "more than 64 bits"),
        ("a", [1, "x"], None, "has no GGUF type"),
        ("a", [[1], [2]], None, "has no GGUF type"),
        ("a", [], None, "no obvious GGUF type"),
        ("a", None, None, "no obvious GGUF type"),
        ("a", "x", "u32", "is not u32"),
        ("a", 1, "str", "is not str"),
        ("a", "x", "str[]", "is not str"),
        ("a", 1, "i32[]", "is not i32"),
        ("a", 1, "u128", "no value type 'u128'"),
        ("general.alignment", 3, None, "power of two"),
        ("general.alignment", 32, "u64", "has to be a u32"),
    ],
)
def test_metadata_that_cannot_be_written_is_named(
    key: str, value: Any, kind: str | None, problem: str, tmp_path: Path
) -> None:
    with pytest.raises(GGUFError, match=problem) as caught:
        GGUFWriter(tmp_path / "m.gguf").set(key, value, kind)
    assert caught.value.field == key


@pytest.mark.parametrize(
    ("name", "source", "options", "problem"),
    [
        ("", np.zeros(4, np.float32), {}, "1 to 63 bytes"),
        ("n" * 64, np.zeros(4, np.float32), {}, "1 to 63 bytes"),
        ("taken", np.zeros(4, np.float32), {}, "added already"),
        ("w", np.zeros((2, 33), np.float32), {"kind": "q8_0"}, "q8_0"),
        ("w", np.zeros((1, 1, 1, 1, 4), np.float32), {}, "4 dimensions"),
        ("w", np.zeros(4, np.uint8), {}, "need a type and a shape"),
        ("w", lambda: np.zeros(4), {}, "need a type and a shape"),
        ("w", lambda: np.zeros(4), {"kind": "f32", "shape": (2**62, 4)}, "2\\^63"),
        ("w", lambda: np.zeros(4), {"kind": "f32", "shape": (5,)}, r"\(4,\), not \(5,\)"),
        ("w", np.zeros(35, np.uint8), {"kind": "q8_0", "shape": (32,)}, "35 raw bytes, not 34"),
        ("w", np.full((1, 32), np.nan, np.float32), {"kind": "q8_0"}, "NaN"),
        ("w", np.zeros(256, np.float32), {"kind": "iq2_xxs"}, "importance matrix"),
    ],
)
def test_a_tensor_that_cannot_be_written_is_named(
    name: str, source: Any, options: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf")
    writer.add_tensor("taken", np.zeros(4, np.float32))
    with pytest.raises(GGUFError, match=problem) as caught:
        writer.add_tensor(name, source, **options)
        writer.write()
    assert caught.value.field == name
    assert os.listdir(tmp_path) == []
