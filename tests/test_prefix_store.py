"""Beginnings of prompts kept in files: written once, found again, and never taken for another model's."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sent import Sent

from pyggml.engine import LLM, ConfigError
from pyggml.engine.prefix_store import PrefixStore, file_identity

SYSTEM = [5 + i % 250 for i in range(300)]
MODES: dict[str, dict[str, Any]] = {
    "one device": {"device": "cpu"},
    "tensor parallel": {"device": "cpu,cpu", "tp": 2},
    "layer split": {"device": "cpu,cpu", "layer_split": 2},
}
OPTIONS: dict[str, Any] = {"threads": 1, "ctx": 512, "parallel": 2}


def question(i: int) -> list[int]:
    return SYSTEM + [10 + i] * 5


def answer(llm: LLM, prompt: list[int]) -> Sent:
    return Sent(llm, prompt, max_tokens=6, ignore_eos=True).wait()


def wait_for_files(llm: LLM, n: int) -> None:
    for _ in range(600):
        if llm.status().prefix.n_files >= n:
            return
        time.sleep(0.05)
    raise AssertionError("no file was written")


@pytest.fixture
def path(tiny: Callable[..., Path]) -> Path:
    return tiny("llama", quant="F32")


def write_one(path: Path, folder: Path, **options: Any) -> list[int]:
    """Ask three questions with one beginning, which is then kept; the answer to a fourth."""
    with LLM(path, **(OPTIONS | {"device": "cpu"} | options), prefix_cache_dir=folder) as llm:
        sent = [answer(llm, question(i)) for i in range(3)]
        wait_for_files(llm, 1)
        assert [s.n_cached() for s in sent] == [0, 300, 300]
        return answer(llm, question(9)).ids()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_after_a_restart_the_beginning_is_not_evaluated_again(
    mode: str, cache_type: str, path: Path, tmp_path: Path
) -> None:
    options = MODES[mode] | {"cache_type_k": cache_type, "cache_type_v": cache_type}
    before = write_one(path, tmp_path, **options)
    with LLM(path, **(OPTIONS | options), prefix_cache_dir=tmp_path) as llm:
        again = answer(llm, question(9))
        assert llm.status().prefix.n_files_loaded == 1
    assert again.n_cached() == 300
    assert again.ids() == before


def test_two_prompts_with_one_beginning_are_too_few(path: Path, tmp_path: Path) -> None:
    with LLM(path, **OPTIONS, device="cpu", prefix_cache_dir=tmp_path) as llm:
        for i in range(2):
            answer(llm, question(i))
    assert list(tmp_path.iterdir()) == []


def test_a_conversation_that_grows_is_not_written_again_and_again(path: Path, tmp_path: Path) -> None:
    with LLM(path, **OPTIONS, device="cpu", prefix_cache_dir=tmp_path) as llm:
        prompt = list(SYSTEM)
        for i in range(6):
            prompt = [*prompt, *answer(llm, prompt).ids(), 20 + i, 21]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"cache_type_k": "q8_0"},
        {"cache_type_v": "f32"},
        {"device": "cpu,cpu", "tp": 2},
        {"device": "cpu,cpu", "layer_split": 2},
        {"prefix_cache": False},
        "another file",
        "the file written anew",
    ],
    ids=str,
)
def test_another_model_or_layout_never_uses_it(
    change: dict[str, Any] | str, path: Path, tiny: Callable[..., Path], tmp_path: Path
) -> None:
    own = tmp_path / "model.gguf"
    own.write_bytes(path.read_bytes())
    folder = tmp_path / "prefixes"
    write_one(own, folder)
    if change == "another file":
        own.write_bytes(tiny("llama", quant="F32", seed=2).read_bytes())
    elif change == "the file written anew":
        os.utime(own, (1, 1))
    options = OPTIONS | {"device": "cpu"} | (change if isinstance(change, dict) else {})
    with LLM(own, **options, prefix_cache_dir=folder) as llm:
        assert answer(llm, question(9)).n_cached() == 0
        assert llm.status().prefix.n_files == 0


@pytest.mark.parametrize("damage", ["cut", "empty", "magic", "header", "ids", "rows", "digest"])
def test_a_damaged_file_is_told_in_one_line_and_not_used(
    damage: str, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    right = write_one(path, tmp_path)
    (file,) = tmp_path.iterdir()
    raw = bytearray(file.read_bytes())
    at_ids = raw.index(b"}") + 1
    places = {"magic": 3, "header": 30, "ids": at_ids + 7, "rows": len(raw) // 2, "digest": len(raw) - 1}
    if damage in places:
        raw[places[damage]] ^= 1
    file.write_bytes({"cut": raw[:-100], "empty": b""}.get(damage, raw))
    with caplog.at_level(logging.WARNING), LLM(path, **OPTIONS, device="cpu", prefix_cache_dir=tmp_path) as llm:
        sent = answer(llm, question(9))
        again = answer(llm, question(8))
    told = [record.getMessage() for record in caplog.records if file.name in record.getMessage()]
    assert len(told) == 1 and "\n" not in told[0]
    assert sent.n_cached() == 0 and sent.ids() == right and again.n_cached() == 300


def store(folder: Path, max_bytes: int = 10**6) -> PrefixStore:
    return PrefixStore(folder, "id", [8, 4], max_bytes)


def saved(store: PrefixStore, ids: np.ndarray) -> str:
    store.save(ids, [np.full(len(ids) * n, int(ids[0]), np.uint8) for n in (8, 4)])
    for _ in range(200):
        for name in store.ready():
            return name
        time.sleep(0.02)
    raise AssertionError("it was not written")


def test_the_files_not_used_for_longest_make_room(tmp_path: Path) -> None:
    kept = store(tmp_path, 5000)
    names = []
    for i in range(5):
        names.append(saved(kept, np.full(100, i + 1, np.int32)))
        os.utime(tmp_path / names[-1], (i + 1, i + 1))
        if i == 1:
            assert kept.load(names[0], 0, 10) is not None  # now the second is the oldest
    kept.close()
    left = {path.name for path in tmp_path.iterdir()}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 5000
    assert names[0] in left and names[1] not in left and names[4] in left


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    first = store(tmp_path)
    ids = np.arange(50, dtype=np.int32)
    parts = [np.arange(400, dtype=np.uint16).astype(np.uint8), np.arange(200, dtype=np.uint8)]
    first.save(ids, parts)
    first.close()
    second = store(tmp_path)
    ((name, found),) = second.ready().items()
    np.testing.assert_array_equal(found, ids)
    loaded = second.load(name, 10, 20)
    assert loaded is not None
    np.testing.assert_array_equal(loaded[0], parts[0][80:160])
    np.testing.assert_array_equal(loaded[1], parts[1][40:80])


def test_a_file_that_went_away_is_a_miss(tmp_path: Path) -> None:
    kept = store(tmp_path)
    name = saved(kept, np.arange(1, 20, dtype=np.int32))
    (tmp_path / name).unlink()
    assert kept.load(name, 0, 5) is None


def test_a_folder_that_cannot_be_made_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(ConfigError, match="taken"):
        LLM(path, **OPTIONS, device="cpu", prefix_cache_dir=tmp_path / "taken" / "folder")


def test_a_changed_byte_at_either_end_changes_the_identity(tmp_path: Path) -> None:
    file = tmp_path / "m"
    identities = set()
    for at in (None, 0, 999_999, 500_000):
        raw = bytearray(10**6)
        if at is not None:
            raw[at] = 1
        file.write_bytes(raw)
        os.utime(file, (5, 5))
        identities.add(file_identity([file], "f16"))
    identities.add(file_identity([file], "q8_0"))
    assert len(identities) >= 4
