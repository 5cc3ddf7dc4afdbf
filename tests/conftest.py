"""Fixtures that all tests share.

Tests run with a clean environment (no option of the caller's leaks in) and two CPU threads, so
that sums come out the same everywhere. What lies outside the repository comes from `places`: without it a test is
skipped with the remedy, or fails where CI is set, since there nothing may be skipped by accident.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import places
import pytest
from server_process import ServerProcess
from tiny import write_tiny
from tool_models import caller_in, thinker_in

if TYPE_CHECKING:
    from fake_hub import FakeHub

sys.path.append(str(Path(__file__).with_name("reference")))

from f32_copy import f32_copy
from llama import Reference
from token_files import write_vocabulary

OWN_PREFIXES = ("PYGGML_", "LLAMA_ARG_", "HF_")


def _clean_environment() -> None:
    for name in list(os.environ):
        if name.startswith(OWN_PREFIXES) and not name.startswith("PYGGML_TEST_"):
            del os.environ[name]
    os.environ["PYGGML_THREADS"] = "2"


_clean_environment()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and programs that the tests start would ignore Ctrl-C too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Put the environment back after each test."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


def _found(place: Callable[[], Path]) -> Path:
    try:
        return place()
    except places.Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub on this machine, the only one that is known, and caches of the test's own; tries follow without a wait."""
    from fake_hub import FakeHub
    from huggingface_hub import constants

    from pyggml.engine.downloads import transfer

    with FakeHub().serving() as fake:
        template = fake.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", fake.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(transfer, "_MAX_WAIT_S", 0.0)
        # The same for programs that a test starts.
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("PYGGML_CACHE", str(tmp_path / "cache"))
        yield fake


@pytest.fixture(scope="session")
def archive() -> Path:
    """The unpacked llama.cpp source tree of the pinned archive."""
    return _found(places.archive_folder)


@pytest.fixture(scope="session")
def reference_bin() -> Path:
    """The folder with the reference's tools (llama-tokenize, llama-server, …) and libraries."""
    return _found(places.reference_folder)


@pytest.fixture(scope="session")
def reference(archive: Path, reference_bin: Path) -> Reference:
    """The reference as a program that gives logits and greedy answers for any model and tokens."""
    return Reference(archive, reference_bin)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as Q4_1."""
    return _found(places.smollm2_file)


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Gemma 3 270M as Q4_K_M."""
    return _found(places.gemma3_file)


@pytest.fixture(scope="session")
def deepseek_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DeepSeek's vocabulary as a GGUF file."""
    source = _found(places.deepseek_file)
    return write_vocabulary(tmp_path_factory.mktemp("vocabulary") / "deepseek.gguf", source, pre="deepseek-v3")


@pytest.fixture(scope="session")
def smollm2_f32(reference: Reference, smollm2: Path) -> Path:
    """SmolLM2 with all weights as F32 (0.5 GB, made once into the cache)."""
    return f32_copy(reference, smollm2)


@pytest.fixture(scope="session")
def gemma3_f32(reference: Reference, gemma3: Path) -> Path:
    """Gemma 3 270M with all weights as F32 (1.1 GB, made once into the cache)."""
    return f32_copy(reference, gemma3)


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a model that calls a tool."""
    with caller_in(tmp_path_factory.mktemp("serve")) as server:
        yield server


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of a model that reasons before it answers."""
    with thinker_in(tmp_path_factory.mktemp("serve")) as server:
        yield server


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny(arch, **options)`: the path of a tiny model, written at most once a session; options are write_tiny's."""
    folder = tmp_path_factory.mktemp("tiny")
    written: dict[object, Path] = {}

    def path_of(arch: str, **options: object) -> Path:
        key = (arch, tuple(sorted(options.items())))
        if key not in written:
            name = "-".join(
                [arch, *(f"{name}={value}" for name, value in sorted(options.items()) if name != "omit")]
            )
            written[key] = write_tiny(folder / f"{len(written)}-{name}.gguf", arch, **options)  # type: ignore[arg-type]
        return written[key]

    return path_of
