"""Models in several files: complete ones equal the whole file, all others are refused with what would work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml import GGUF, GGUFError
from pyggml.gguf_writer import GGUFWriter

TENSORS = {f"blk.{i}.w": np.full((4, 32), i, np.float32) for i in range(6)}
METADATA = {"general.architecture": "llama", "general.name": "tiny", "llama.block_count": 6}
TWO_TENSORS_BYTES = 1024


def _split(folder: Path, name: str = "tiny", n_tensors: int = 6, **metadata: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    writer = GGUFWriter(folder / f"{name}.gguf", METADATA | metadata, max_shard_bytes=TWO_TENSORS_BYTES)
    for tensor, values in list(TENSORS.items())[:n_tensors]:
        writer.add_tensor(tensor, values)
    return [Path(path) for path in writer.write()]


def test_a_complete_set_has_the_whole_models_tensors(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    assert [p.name for p in paths] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    with GGUF(paths[0]) as file:
        assert file.paths == tuple(map(str, paths))
        assert {k: file.metadata[k] for k in METADATA} == METADATA
        assert list(file) == list(TENSORS)
        assert [t.file_index for t in file.tensors.values()] == [0, 0, 1, 1, 2, 2]
        for name, values in TENSORS.items():
            tensor = file[name]
            assert np.array_equal(tensor.numpy(), values)
            whole = file.memory(tensor.file_index)[tensor.offset : tensor.offset + tensor.n_bytes]
            assert whole.tobytes() == values.tobytes()


def test_the_split_keys_have_llama_cpps_types(tmp_path: Path) -> None:
    with GGUF(_split(tmp_path)[0]) as file:
        types = {k: v for k, v in file.metadata.types.items() if k.startswith("split.")}
        assert types == {"split.no": "u16", "split.count": "u16", "split.tensors.count": "i32"}


def test_a_set_of_one_loads_under_any_name(tmp_path: Path) -> None:
    (path,) = _split(tmp_path, n_tensors=2)
    assert path.name == "tiny-00001-of-00001.gguf"
    for name in (path, path.rename(tmp_path / "m.gguf")):
        if name.exists():
            with GGUF(name) as file:
                assert len(file) == 2


def test_writing_a_split_models_metadata_makes_a_whole_file(tmp_path: Path) -> None:
    with GGUF(_split(tmp_path)[0]) as file:
        with GGUFWriter(tmp_path / "whole.gguf", file.metadata, file.metadata.types) as writer:
            for tensor in file.tensors.values():
                writer.add_tensor(tensor.name, tensor)
    with GGUF(tmp_path / "whole.gguf") as whole:
        assert len(whole) == 6 and "split.count" not in whole.metadata


def _second_gone(paths: list[Path]) -> Path:
    paths[1].unlink()
    return paths[0]


def _opened_by_second(paths: list[Path]) -> Path:
    return paths[1]


def _second_renamed_and_opened(paths: list[Path]) -> Path:
    return paths[1].rename(paths[1].with_name("m.gguf"))


def _first_renamed(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("m.gguf"))


def _wrong_count_in_name(paths: list[Path]) -> Path:
    return paths[0].rename(paths[0].with_name("tiny-00001-of-00004.gguf"))


def _joined_by_cat(paths: list[Path]) -> Path:
    joined = paths[0].with_name("joined.gguf")
    joined.write_bytes(b"".join(p.read_bytes() for p in paths))
    return joined


def _joined_over_the_first(paths: list[Path]) -> Path:
    paths[0].write_bytes(b"".join(p.read_bytes() for p in paths))
    return paths[0]


def _third_cut_short(paths: list[Path]) -> Path:
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    return paths[0]


def _third_is_a_copy_of_second(paths: list[Path]) -> Path:
    shutil.copy(paths[1], paths[2])
    return paths[0]


def _third_of_a_model_with_another_name(paths: list[Path]) -> Path:
    other = _split(paths[0].parent / "other", **{"general.name": "other"})
    shutil.copy(other[2], paths[2])
    return paths[0]


def _third_of_a_model_with_fewer_tensors(paths: list[Path]) -> Path:
    other = _split(paths[0].parent / "other", n_tensors=5)
    shutil.copy(other[2], paths[2])
    return paths[0]


def _third_is_whole_model(paths: list[Path]) -> Path:
    with GGUFWriter(paths[2], METADATA) as writer:
        writer.add_tensor("blk.5.w", TENSORS["blk.5.w"])
    return paths[0]


# How the set of three is spoilt; the file at fault, its field, and words of the problem.
FAULTS: list[tuple[Callable[[list[Path]], Path], str, str, str]] = [
    (_second_gone, "tiny-00002-of-00003.gguf", "file", "no such file.*tiny-00001-of-00003.gguf"),
    (_opened_by_second, "tiny-00002-of-00003.gguf", "split.no", "file 2 of 3.*tiny-00001-of-00003.gguf"),
    (_second_renamed_and_opened, "m.gguf", "split.no", "file 2 of 3.*-00001-of-00003.gguf"),
    (_first_renamed, "m.gguf", "split.count", "rename it to end in -00001-of-00003.gguf"),
    (_wrong_count_in_name, "tiny-00001-of-00004.gguf", "split.count", "rename it.*-00001-of-00003.gguf"),
    (_joined_by_cat, "joined.gguf", "end of file", "joined by cat"),
    (_joined_over_the_first, "tiny-00001-of-00003.gguf", "end of file", "joined by cat"),
    (_third_cut_short, "tiny-00003-of-00003.gguf", "blk.5.w", "cut short"),
    (_third_is_a_copy_of_second, "tiny-00003-of-00003.gguf", "split.no", "is 1.*has to be 2"),
    (
        _third_of_a_model_with_another_name,
        "tiny-00003-of-00003.gguf",
        "general.name",
        "'other'.*'tiny'.*another model",
    ),
    (_third_of_a_model_with_fewer_tensors, "tiny-00003-of-00003.gguf", "split.tensors.count", "is 5.*be 6"),
    (_third_is_whole_model, "tiny-00003-of-00003.gguf", "split.no", "is None"),
]


@pytest.mark.parametrize(("spoil", "path", "field", "problem"), FAULTS, ids=[f[0].__name__ for f in FAULTS])
def test_a_spoilt_set_is_refused(
    spoil: Callable[[list[Path]], Path], path: str, field: str, problem: str, tmp_path: Path
) -> None:
    opened = spoil(_split(tmp_path))
    with pytest.raises(GGUFError, match=problem) as caught:
        GGUF(opened)
    assert (Path(caught.value.path).name, caught.value.field) == (path, field)


# As tools write them that put nothing but the split keys into the later files.
def _bare_set(folder: Path, tensors: list[list[str]], total: int) -> Path:
    for i, names in enumerate(tensors):
        path = folder / f"bare-0000{i + 1}-of-0000{len(tensors)}.gguf"
        keys = {"split.no": i, "split.count": len(tensors), "split.tensors.count": total}
        writer = GGUFWriter(path)
        for key, value in keys.items():
            writer.set(key, value, "i32" if key == "split.tensors.count" else "u16")
        for name in names:
            writer.add_tensor(name, np.zeros(4, np.float32))
        writer.write()
    return folder / f"bare-00001-of-0000{len(tensors)}.gguf"


def test_a_set_without_metadata_in_later_files_loads(tmp_path: Path) -> None:
    with GGUF(_bare_set(tmp_path, [["a"], ["b", "c"]], total=3)) as file:
        assert list(file) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tensors", "total", "field", "problem"),
    [
        ([["a"], ["a", "b"]], 3, "a", "bare-00001-of-00002.gguf too"),
        ([["a"], ["b"]], 3, "split.tensors.count", "have 2 tensors, not 3"),
        ([["a"], ["b"]], 1, "split.tensors.count", "have 2 tensors, not 1"),
    ],
)
def test_tensors_that_do_not_make_one_model_are_refused(
    tensors: list[list[str]], total: int, field: str, problem: str, tmp_path: Path
) -> None:
    path = _bare_set(tmp_path, tensors, total)
    with pytest.raises(GGUFError, match=problem) as caught:
        GGUF(path)
    assert caught.value.field == field


@pytest.mark.parametrize(("key", "value"), [("split.count", "three"), ("split.no", [0])])
def test_split_keys_of_a_wrong_type_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m-00001-of-00003.gguf")
    writer.set("split.count", 3, "u16")
    writer.set(key, value)
    writer.write()
    with pytest.raises(GGUFError, match="an integer belongs here") as caught:
        GGUF(tmp_path / "m-00001-of-00003.gguf")
    assert caught.value.field == key
