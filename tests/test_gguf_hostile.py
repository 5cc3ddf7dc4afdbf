"""Files that lie, are damaged or cut short: each is refused by a GGUFError that names the file and the field."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf_bytes import ARRAY, F32, Q8_0, STRING, head, one_tensor, padded, string, tensor, u32

from pyggml import GGUF, GGUFError
from pyggml.gguf_writer import GGUFWriter

MAX_GROWTH_BYTES = 64 << 20
PAIR = string("a.b")

# file, field that the error names, words of its problem
HOSTILE: dict[str, tuple[bytes, str, str]] = {
    "empty file": (b"", "file", "empty"),
    "magic cut": (b"GGU", "magic", "cut short"),
    "other magic": (head(0, 0, magic=b"GGML"), "magic", "not a GGUF file"),
    "header cut": (head(0, 0)[:20], "n_kv", "cut short"),
    "version 0": (head(0, 0, 0), "version", "not supported"),
    "version 1": (head(0, 0, 1), "version", "not supported"),
    "version 99": (head(0, 0, 99), "version", "not supported"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version", "big-endian"),
    "2^64 - 1 tensors": (head(2**64 - 1, 0), "n_tensors", "18446744073709551615"),
    "2^63 - 1 keys": (head(0, 2**63 - 1), "n_kv", "9223372036854775807"),
    "more tensors than fit": (head(1000, 0) + bytes(1000), "n_tensors", "no room"),
    "key of 2^62 bytes": (head(0, 1) + struct.pack("<Q", 2**62) + bytes(20), "key 0", "4611686018427387904"),
    "empty key": (head(0, 1) + u32("", 1), "key 0", "empty"),
    "key not ASCII": (head(0, 1) + u32("schlüssel", 1), "key 0", "ASCII"),
    "key with a zero byte": (head(0, 1) + u32(b"a\0b", 1), "key 0", "ASCII"),
    "key of 65536 bytes": (head(0, 1) + u32("k" * 65536, 1), "key 0", "65535"),
    "key cut": (head(0, 2) + u32("a.b", 1) + struct.pack("<Q", 9) + b"long", "key 1", "9 bytes, but only 4"),
    "value cut": (head(0, 1) + PAIR + struct.pack("<I", 11) + bytes(4), "a.b", "i64"),
    "array of 2^61": (head(0, 1) + PAIR + struct.pack("<IIQ", ARRAY, 4, 2**61), "a.b", "2305843009213693952"),
    "string array of 2^30": (
        head(0, 1) + PAIR + struct.pack("<IIQ", ARRAY, STRING, 2**30),
        "a.b",
        "1073741824 value.*str",
    ),
    "string in array too long": (
        head(0, 1) + PAIR + struct.pack("<IIQQQ", ARRAY, STRING, 2, 0, 2**40) + bytes(9),
        "a.b",
        "1099511627776",
    ),
    "array of arrays": (head(0, 1) + PAIR + struct.pack("<IIQ", ARRAY, ARRAY, 0), "a.b", "array of arrays"),
    "value type 77": (head(0, 1) + PAIR + struct.pack("<II", 77, 0), "a.b", "77"),
    "value type -1": (head(0, 1) + PAIR + struct.pack("<iI", -1, 0), "a.b", "-1"),
    "element type 77": (head(0, 1) + PAIR + struct.pack("<IIQ", ARRAY, 77, 1), "a.b", "77"),
    "key twice": (head(0, 3) + u32("a.b", 1) + u32("c.d", 1) + u32("a.b", 2), "a.b", "two keys"),
    "alignment 0": (head(0, 1) + u32("general.alignment", 0), "general.alignment", "is 0"),
    "alignment 3": (head(0, 1) + u32("general.alignment", 3), "general.alignment", "is 3"),
    "alignment 4": (head(0, 1) + u32("general.alignment", 4), "general.alignment", "is 4"),
    "alignment 2^31": (
        padded(head(1, 1) + u32("general.alignment", 2**31) + tensor("t", [1])) + bytes(64),
        "t",
        "cut short",
    ),
    "alignment as string": (
        head(0, 1) + string("general.alignment") + struct.pack("<I", STRING) + string("32"),
        "general.alignment",
        "u32",
    ),
    "alignment as array": (
        head(0, 1) + string("general.alignment") + struct.pack("<IIQI", ARRAY, 4, 1, 32),
        "general.alignment",
        "u32",
    ),
    "a million dimensions": (
        one_tensor(string("t") + struct.pack("<I", 1_000_000)),
        "t",
        "1000000 dimensions",
    ),
    "five dimensions": (one_tensor(tensor("t", [1, 1, 1, 1, 1])), "t", "5 dimensions"),
    "dimension 2^63": (one_tensor(tensor("t", [2**63])), "t", "9223372036854775808"),
    "product wraps to 2^22": (one_tensor(tensor("t", [4194304, 4398046511105])), "t", "2\\^63 or more"),
    "product wraps to 0": (one_tensor(tensor("t", [2**32, 2**32])), "t", "2\\^63 or more"),
    "bytes wrap to 0": (one_tensor(tensor("t", [2**62, 1])), "t", "2\\^64 bytes or more"),
    "tensor type 4": (one_tensor(tensor("t", [32], 4)), "t", "type 4 was removed"),
    "tensor type 9999": (one_tensor(tensor("t", [32], 9999)), "t", "type 9999"),
    "tensor type -1": (one_tensor(tensor("t", [32], -1)), "t", "type -1"),
    "33 elements of q8_0": (one_tensor(tensor("t", [33], Q8_0)), "t", "33 elements.*q8_0.*32"),
    "q8_0 without dimensions": (one_tensor(tensor("t", [], Q8_0)), "t", "q8_0"),
    "offset 4": (one_tensor(tensor("t", [1], F32, 4)), "t", "offset 4 .*32"),
    "offset 2^40": (one_tensor(tensor("t", [1], F32, 2**40)), "t", "1099511627776"),
    "overlapping tensors": (
        padded(head(2, 0) + tensor("t", [1]) + tensor("u", [1])) + bytes(64),
        "u",
        "end at 32",
    ),
    "name twice": (
        padded(head(2, 0) + tensor("t", [1]) + tensor("t", [1], F32, 32)) + bytes(64),
        "t",
        "two tensors",
    ),
    "name of 65 bytes": (one_tensor(tensor("n" * 65, [1])), "tensor 0", "65 bytes"),
    "name of 64 bytes": (one_tensor(tensor("n" * 64, [1])), "tensor 0", "64 bytes"),
    "empty name": (one_tensor(tensor("", [1])), "tensor 0", "empty"),
    "name with a zero byte": (one_tensor(tensor(b"a\0b", [1])), "tensor 0", "zero byte"),
    "offset cut": (head(1, 0) + tensor("t", [1])[:-1], "t", "cut short"),
    "no padding and no data": (head(1, 0) + tensor("t", [0]), "t", "cut short"),
    "255 of 256 bytes": (padded(head(1, 0) + tensor("blk.0.x", [64])) + bytes(255), "blk.0.x", "256 bytes"),
    "second file behind": (
        padded(head(1, 0) + tensor("t", [8])) + bytes(32) + head(0, 0),
        "end of file",
        "cat",
    ),
    "second file behind short data": (
        padded(head(1, 0) + tensor("t", [1])) + bytes(4) + head(0, 0),
        "end of file",
        "cat",
    ),
    "second header behind": (head(0, 0) + head(0, 0), "end of file", "cat"),
}

# Opens each file given on the command line, uses it fully if it loads, and prints by how much memory grew.
USE_EACH = """
import json, resource, sys
import pyggml
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, outcomes = peak(), []
for path in sys.argv[1:]:
    try:
        pyggml.GGUF(path)
        outcomes.append("loaded")
    except pyggml.GGUFError as error:
        outcomes.append(error.field)
print(json.dumps({"growth_bytes": peak() - before, "outcomes": outcomes}))
"""


def _write(folder: Path, raw: bytes, name: str = "m.gguf") -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_by_name_and_field(case: str, tmp_path: Path) -> None:
    raw, field, problem = HOSTILE[case]
    path = _write(tmp_path, raw)
    with pytest.raises(GGUFError, match=problem) as caught:
        GGUF(path)
    assert caught.value.path == str(path)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{path}: {caught.value.field}: ")


@pytest.mark.timeout(60)
def test_hostile_files_cost_neither_memory_nor_the_process(tmp_path: Path) -> None:
    paths = [str(_write(tmp_path, raw, f"{i}.gguf")) for i, (raw, _, _) in enumerate(HOSTILE.values())]
    done = subprocess.run(
        [sys.executable, "-c", USE_EACH, *paths], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report["growth_bytes"] < MAX_GROWTH_BYTES
    assert "loaded" not in report["outcomes"] and len(report["outcomes"]) == len(HOSTILE)


# Enough room for the announced counts, since the file is sparse: memory must not follow the announcement either.
@pytest.mark.timeout(60)
def test_counts_that_a_sparse_file_has_room_for_are_not_allocated(tmp_path: Path) -> None:
    path = _write(tmp_path, head(2**30, 2**30))
    os.truncate(path, 1 << 40)
    done = subprocess.run(
        [sys.executable, "-c", USE_EACH, str(path)], capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert report["outcomes"] == ["key 0"]
    assert report["growth_bytes"] < MAX_GROWTH_BYTES


@pytest.mark.parametrize("kept", ["half", "all but the last byte"])
def test_a_model_cut_short_is_refused_by_a_tensors_name(kept: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = {f"blk.{i}.attn_q.weight": np.ones((8, 32), np.float32) for i in range(4)}
    with GGUFWriter(path, {"general.architecture": "llama"}) as writer:
        for name, values in tensors.items():
            writer.add_tensor(name, values)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2] if kept == "half" else raw[:-1])
    with pytest.raises(GGUFError, match="cut short") as caught:
        GGUF(path)
    assert caught.value.field in tensors


@pytest.mark.parametrize("kind", ["missing", "folder", "pipe"])
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(GGUFError) as caught:
        GGUF(path)
    assert (caught.value.path, caught.value.field) == (str(path), "file")


@pytest.mark.parametrize(
    ("raw", "n_keys", "shapes"),
    [
        (head(0, 0), 0, []),
        (head(0, 0, version=2), 0, []),
        (head(0, 1) + u32("general.alignment", 64), 1, []),
        (one_tensor(tensor("t", [1, 0])), 0, [(0, 1)]),
        (one_tensor(tensor("t", [])), 0, [()]),
        (one_tensor(tensor("n" * 63, [2, 3, 4, 5])), 0, [(5, 4, 3, 2)]),
        (padded(head(1, 0) + tensor("t", [8])) + bytes(32) + b"a trailing note", 0, [(8,)]),
    ],
    ids=["empty", "version 2", "alignment 64", "dims 1, 0", "no dims", "name of 63", "trailing bytes"],
)
def test_unusual_files_that_are_legal_load(
    raw: bytes, n_keys: int, shapes: list[tuple[int, ...]], tmp_path: Path
) -> None:
    with GGUF(_write(tmp_path, raw)) as file:
        assert file.architecture is None
        assert len(file.metadata) == n_keys
        assert [t.numpy().shape for t in file.tensors.values()] == shapes
