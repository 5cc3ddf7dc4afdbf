"""Metadata and tensors come back as they were written, and as other readers see them."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf_bytes import head, one_tensor, string, tensor

from pyggml import GGUF, ClosedError, GGUFError, ShapeError
from pyggml.gguf_writer import GGUFWriter

INTS = {
    "u8": (0, 255),
    "i8": (-128, 127),
    "u16": (0, 65535),
    "i16": (-32768, 32767),
    "u32": (0, 2**32 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "u64": (0, 2**64 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
SCALARS = [
    *((kind, value) for kind, values in INTS.items() for value in values),
    ("f32", -0.1),
    ("f64", -0.1),
    ("bool", True),
    ("bool", False),
    ("str", ""),
    ("str", "Grüße 👍\n"),
    ("str", "zero\0byte"),
]
ARRAYS: list[tuple[str, Any]] = [
    *((f"{kind}[]", list(values)) for kind, values in INTS.items()),
    ("f32[]", [0.5, -1.25]),
    ("f64[]", [0.1, 1e300]),
    ("bool[]", [True, False, True]),
    ("str[]", ["", "a", "👍", "a b\n"]),
    ("str[]", ["zero\0byte", "", "\0"]),
    ("str[]", []),
    ("i32[]", []),
]


def _write(path: Path, metadata: dict[str, Any], types: dict[str, str] | None = None) -> Path:
    GGUFWriter(path, metadata, types).write()
    return path


@pytest.mark.parametrize(("kind", "value"), SCALARS)
def test_a_value_comes_back_with_its_type(kind: str, value: Any, tmp_path: Path) -> None:
    with GGUF(_write(tmp_path / "m.gguf", {"a.b": value}, {"a.b": kind})) as file:
        wanted = float(np.float32(value)) if kind == "f32" else value
        found = file.metadata["a.b"]
        assert (found, type(found), file.metadata.types) == (wanted, type(wanted), {"a.b": kind})


@pytest.mark.parametrize(("kind", "values"), ARRAYS)
def test_an_array_comes_back_with_its_type(kind: str, values: list[Any], tmp_path: Path) -> None:
    with GGUF(_write(tmp_path / "m.gguf", {"a.b": values}, {"a.b": kind})) as file:
        found = file.metadata["a.b"]
        assert list(found) == values
        assert file.metadata.types["a.b"] == kind
        assert isinstance(found, list) if kind == "str[]" else found.dtype == np.array(found).dtype


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, "u32"),
        (-7, "i32"),
        (2**40, "u64"),
        (-(2**40), "i64"),
        (True, "bool"),
        (0.5, "f32"),
        ("x", "str"),
        ([1, 2], "i32[]"),
        ([-1, 2**40], "i64[]"),
        ([2**63], "u64[]"),
        ([1, 0.5], "f32[]"),
        ([True], "bool[]"),
        (["x"], "str[]"),
        (np.uint16(3), "u16"),
        (np.zeros(2, np.float64), "f64[]"),
        (np.zeros(2, np.bool_), "bool[]"),
    ],
)
def test_the_type_of_an_untyped_value(value: Any, kind: str, tmp_path: Path) -> None:
    with GGUF(_write(tmp_path / "m.gguf", {"a.b": value})) as file:
        assert file.metadata.types["a.b"] == kind


def test_text_that_is_not_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    raw = b"\xff\xfe caf\xe9"
    path = tmp_path / "m.gguf"
    path.write_bytes(head(0, 1) + string("a.b") + (8).to_bytes(4, "little") + string(raw))
    with GGUF(path) as file:
        text = file.metadata["a.b"]
        assert text.encode("utf-8", "surrogateescape") == raw
        GGUFWriter(tmp_path / "copy.gguf", file.metadata, file.metadata.types).write()
    assert (tmp_path / "copy.gguf").read_bytes()[: path.stat().st_size] == path.read_bytes()


def test_bools_other_than_0_and_1_are_true(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(head(0, 1) + string("a.b") + b"\7\0\0\0" + b"\x80")
    with GGUF(path) as file:
        assert file.metadata["a.b"] is True


@pytest.fixture(scope="module")
def agreement(smollm2: Path) -> tuple[GGUF, Any]:
    return GGUF(smollm2), gguf.GGUFReader(smollm2)


def test_a_real_files_metadata_is_what_gguf_reads(agreement: tuple[GGUF, Any]) -> None:
    ours, theirs = agreement
    wanted = {key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert list(ours.metadata) == list(wanted)
    for key, value in wanted.items():
        found = ours.metadata[key]
        assert (found.tolist() if isinstance(found, np.ndarray) else found) == value, key


def test_a_real_files_tensors_are_what_gguf_reads(agreement: tuple[GGUF, Any]) -> None:
    ours, theirs = agreement
    assert list(ours) == [t.name for t in theirs.tensors]
    for wanted in theirs.tensors:
        found = ours[wanted.name]
        assert (found.type.id, found.offset, found.n_bytes) == (
            wanted.tensor_type,
            wanted.data_offset,
            wanted.n_bytes,
        )
        assert list(found.ne[: found.n_dims]) == wanted.shape.tolist()
    norm, embedding = ours["output_norm.weight"], ours["token_embd.weight"]
    assert norm.numpy().tobytes() == theirs.get_tensor(list(ours).index(norm.name)).data.tobytes()
    rows = embedding.rows(7, 9)
    assert rows.tobytes() == theirs.get_tensor(list(ours).index(embedding.name)).data[7:9].tobytes()


@pytest.mark.timeout(60)
def test_a_large_vocabulary_comes_back_whole(tmp_path: Path) -> None:
    tokens = [f"▁token{i}" for i in range(262_144)]
    scores = np.arange(len(tokens), dtype=np.float32)
    path = _write(tmp_path / "m.gguf", {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores})
    with GGUF(path) as file:
        assert file.metadata["tokenizer.ggml.tokens"] == tokens
        assert np.array_equal(file.metadata["tokenizer.ggml.scores"], scores)


def test_values_are_decoded_once(tmp_path: Path) -> None:
    with GGUF(_write(tmp_path / "m.gguf", {"a.b": ["x"], "c.d": [1, 2]})) as file:
        assert file.metadata["a.b"] is file.metadata["a.b"]
        with pytest.raises(ValueError, match="read-only"):
            file.metadata["c.d"][0] = 9


def _two_tensors(path: Path) -> Path:
    with GGUFWriter(path) as writer:
        writer.add_tensor("a", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
        writer.add_tensor("blk.0.attn_q.weight", np.arange(6, dtype=np.int32).reshape(3, 2))
    return path


def test_a_tensor_describes_itself_in_both_orders(tmp_path: Path) -> None:
    with GGUF(_two_tensors(tmp_path / "m.gguf")) as file:
        a = file["a"]
        assert (a.shape, a.ne, a.n_dims, a.n_rows, a.n_bytes, a.file_index) == (
            (2, 3, 4),
            (4, 3, 2, 1),
            3,
            6,
            96,
            0,
        )
        assert np.array_equal(a.numpy(), np.arange(24).reshape(2, 3, 4))
        assert a.rows(2, 4).view(np.float32).tolist() == list(range(8, 16))
        assert file["blk.0.attn_q.weight"].numpy().dtype == np.int32


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 7)])
def test_rows_outside_of_a_tensor_are_refused(start: int, stop: int, tmp_path: Path) -> None:
    with GGUF(_two_tensors(tmp_path / "m.gguf")) as file, pytest.raises(ShapeError, match="it has 6"):
        file["a"].rows(start, stop)


def test_a_missing_tensor_is_named_with_what_comes_near(tmp_path: Path) -> None:
    with GGUF(_two_tensors(tmp_path / "m.gguf")) as file:
        with pytest.raises(GGUFError, match=r"no such tensor; it has blk\.0\.attn_q\.weight") as caught:
            file["blk.0.attn_k.weight"]
        assert caught.value.field == "blk.0.attn_k.weight"
        assert "a" in file and "b" not in file and len(file) == 2


def test_tensor_data_is_a_read_only_view_of_the_mapped_file(tmp_path: Path) -> None:
    with GGUF(_two_tensors(tmp_path / "m.gguf")) as file:
        a = file["a"]
        assert np.shares_memory(a.data, file.memory(0)) and np.shares_memory(a.numpy(), a.data)
        assert file.memory(0)[a.offset : a.offset + a.n_bytes].tobytes() == a.data.tobytes()
        with pytest.raises(ValueError, match="read-only"):
            a.data[0] = 1


def test_views_outlive_the_closed_file(tmp_path: Path) -> None:
    file = GGUF(_two_tensors(tmp_path / "m.gguf"))
    view, tensor = file["a"].numpy(), file["a"]
    file.close()
    del file
    gc.collect()
    assert view[1, 2, 3] == 23
    with pytest.raises(ClosedError, match=r"m\.gguf"):
        tensor.data  # noqa: B018


def test_a_closed_file_keeps_values_that_were_read_and_refuses_others(tmp_path: Path) -> None:
    file = GGUF(_write(tmp_path / "m.gguf", {"a.b": [1, 2], "c.d": 3}))
    values = file.metadata["a.b"]
    file.close()
    file.close()
    assert values.tolist() == file.metadata["a.b"].tolist() == [1, 2]
    with pytest.raises(ClosedError, match="closed"):
        file.metadata["c.d"]


def test_closing_unmaps_the_file(tmp_path: Path) -> None:
    path = _two_tensors(tmp_path / "m.gguf")
    file = GGUF(path)
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("mappings are listed on Linux only")
    assert str(path) in maps.read_text()
    file["a"].numpy()
    file.close()
    assert str(path) not in maps.read_text()


def test_many_threads_read_one_file(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(20_000)]
    path = tmp_path / "m.gguf"
    with GGUFWriter(path, {"tokenizer.ggml.tokens": tokens}) as writer:
        writer.add_tensor("w", np.linspace(-1, 1, 256 * 64, dtype=np.float32).reshape(64, 256), "q4_k")
    with GGUF(path) as file:
        wanted = file["w"].numpy().tobytes()
        wrong: list[int] = []

        def read(number: int) -> None:
            for _ in range(20):
                if file.metadata["tokenizer.ggml.tokens"] != tokens or file["w"].numpy().tobytes() != wanted:
                    wrong.append(number)

        threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_tensor_with_a_zero_dimension_has_no_data(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(one_tensor(tensor("t", [32, 0], 8)))
    with GGUF(path) as file:
        assert file["t"].n_bytes == 0
        assert file["t"].rows(0, 0).size == file["t"].numpy().size == 0
