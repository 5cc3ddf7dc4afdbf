"""Random damage to a good file: it loads or is a GGUFError, never anything else, and ggml agrees with what loads."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml import GGUF, GGUFError
from pyggml._ffi import ffi, lib
from pyggml.gguf_writer import GGUFWriter

N_FILES = 3000
EXTREMES = (
    0,
    1,
    31,
    32,
    33,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 32,
    2**64 - 1,
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "m.gguf"
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "a.float": 0.5,
        "a.bools": [True, False],
        "a.numbers": [1, 2, 3],
        "tokenizer.ggml.tokens": ["<s>", "a", "👍"],
    }
    rng = np.random.default_rng(5)
    with GGUFWriter(path, metadata) as writer:
        for name, kind, shape in (("a", "f32", (3,)), ("b", "q8_0", (2, 32)), ("c", "q4_k", (1, 256))):
            writer.add_tensor(name, rng.standard_normal(shape, np.float32), kind)
    return path.read_bytes()


def _flip_bytes(raw: bytearray, end: int, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        raw[rng.randrange(end)] = rng.randrange(256)


def _set_small(raw: bytearray, end: int, rng: random.Random) -> None:
    raw[rng.randrange(end)] = rng.randrange(16)


def _set_extreme(raw: bytearray, end: int, rng: random.Random) -> None:
    at = rng.randrange(end - 8)
    raw[at : at + 8] = struct.pack("<Q", rng.choice(EXTREMES))


def _cut(raw: bytearray, end: int, rng: random.Random) -> None:
    del raw[rng.randrange(len(raw)) :]


def _remove_some(raw: bytearray, end: int, rng: random.Random) -> None:
    at = rng.randrange(end)
    del raw[at : at + rng.randint(1, 16)]


def _repeat_some(raw: bytearray, end: int, rng: random.Random) -> None:
    at = rng.randrange(end)
    raw[at:at] = raw[at : at + rng.randint(1, 64)]


def _use_fully(file: GGUF) -> None:
    for key in file.metadata:
        assert file.metadata[key] is not None
    for tensor in file.tensors.values():
        assert tensor.data.nbytes == tensor.n_bytes
        if tensor.type.name not in ("q8_1", "q8_k"):
            assert tensor.numpy().shape == tensor.shape


def _ggml_reads(raw: bytes) -> bool:
    params = {"no_alloc": True, "ctx": ffi.NULL}
    ctx = lib.gguf_init_from_buffer(ffi.from_buffer(raw), len(raw), params)
    lib.gguf_free(ctx)
    return bool(ctx != ffi.NULL)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "damage",
    [_flip_bytes, _set_small, _set_extreme, _cut, _remove_some, _repeat_some],
    ids=lambda d: d.__name__,
)
def test_a_damaged_file_loads_or_is_a_gguf_error(
    damage: Callable[[bytearray, int, random.Random], None], good: bytes, tmp_path: Path
) -> None:
    header_end = good.rindex(b"c" + b"\2\0\0\0") + 32
    rng = random.Random(damage.__name__)
    n_loaded = n_refused = 0
    for i in range(N_FILES // 6):
        raw = bytearray(good)
        damage(raw, header_end, rng)
        path = tmp_path / f"{i % 8}.gguf"
        path.write_bytes(raw)
        with np.errstate(all="ignore"):
            try:
                with GGUF(path) as file:
                    _use_fully(file)
            except GGUFError as error:
                n_refused += 1
                assert error.path == str(path) and error.field and error.problem
                continue
        n_loaded += 1
        assert _ggml_reads(bytes(raw)), f"file {i}: ggml refuses what was loaded"
    assert n_refused > N_FILES // 6 // 4
    if damage in (_flip_bytes, _set_small):
        assert n_loaded > 0


def test_ggml_reads_the_undamaged_file(good: bytes) -> None:
    assert _ggml_reads(good)
