"""Devices: their names, the choice of a default, and modules that cannot be loaded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pyggml as gg
from pyggml._ffi import ffi, is_busy
from pyggml.card_uuid import card_uuid
from pyggml.device import LIBRARY_DIR, choose_default, first_interfaces

MODULE = sys.modules["pyggml.device"]  # pyggml.device itself is the function


def card(name: str, kind: str = "gpu", bus_id: str | None = None, description: str = "") -> gg.Device:
    return gg.Device(name, description or name, kind, bus_id, 2**30, name.split(":")[0], None)


CPU = card("cpu", "cpu")
A, B = "0000:01:00.0", "0000:02:00.0"


def test_the_cpu_is_always_there_and_first() -> None:
    cpu = gg.devices()[0]
    assert (cpu.name, cpu.kind, cpu.module) == ("cpu", "cpu", "cpu")
    assert gg.device("cpu") is cpu
    assert cpu.memory_free > 0
    assert cpu.memory_total >= cpu.memory_free
    assert gg.Backend(cpu, threads=1).device is cpu


@pytest.mark.parametrize("name", ["CPU", " cpu "])
def test_names_are_read_in_any_case_and_with_blanks(name: str) -> None:
    assert gg.device(name).name == "cpu"


@pytest.mark.parametrize("name", ["", "gpu", "cpu:1", "cuda:99", "vulkan:99", "c", ":", "nothing like it"])
def test_unknown_names_say_what_there_is(name: str) -> None:
    with pytest.raises(gg.DeviceError, match=r"no device '.*'; this machine has cpu"):
        gg.device(name)


@pytest.mark.parametrize("module", ["cuda", "vulkan"])
def test_an_interface_that_was_not_built_says_how_to_build_it(module: str) -> None:
    if (LIBRARY_DIR / f"libggml-{module}.so").exists():
        pytest.skip(f"{module} is built here")
    words = f"{module} was not built: python build_ggml.py --backends cpu,{module} --install"
    with pytest.raises(gg.DeviceError, match=words):
        gg.Backend(f"{module}:0")


def test_vulkan_without_a_card_says_how_to_try_the_software_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libggml-vulkan.so").touch()
    monkeypatch.setattr(MODULE, "LIBRARY_DIR", tmp_path)
    monkeypatch.setattr(MODULE, "devices", lambda: (CPU,))
    with pytest.raises(gg.DeviceError, match="this machine has cpu; Vulkan shows no graphics card.*VISIBLE_DEVICES=0"):
        gg.device("vulkan:0")


@pytest.mark.parametrize(
    ("running", "given", "spins"),
    [
        ("1/80", {}, "300000"),
        ("90/190", {}, "1000"),
        ("1/80", {"GOMP_SPINCOUNT": "77"}, "77"),
        ("90/190", {"OMP_WAIT_POLICY": "passive"}, "0"),
    ],
    ids=["a quiet machine", "a busy one", "a count", "a policy"],
)
def test_threads_soon_sleep_on_a_busy_machine_unless_the_user_says_otherwise(
    running: str, given: dict[str, str], spins: str
) -> None:
    env = {n: v for n, v in os.environ.items() if n not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    program = f"""
import os, pathlib
os.cpu_count = lambda: len(os.sched_getaffinity(0))
pathlib.Path.read_text = lambda self, *_, **__: "0 0 0 {running} 9"
import pyggml
pyggml.Backend('cpu', threads=2)
print(os.environ.get('GOMP_SPINCOUNT'))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=env | given | {"OMP_DISPLAY_ENV": "verbose"}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("OpenMP's library is not GCC's")
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr
    assert done.stdout.strip() == str(given.get("GOMP_SPINCOUNT"))  # nothing is left for programs that are started


@pytest.mark.parametrize(
    ("running", "n_processors", "expected"),
    [("1/80", 2, False), ("2/80", 2, False), ("3/80", 2, True), ("12/80", 2, True), ("17/900", 32, False),
     ("18/900", 32, True), ("2/80", 1, True), ("x", 2, False)],
)  # fmt: skip
def test_a_machine_is_busy_where_others_want_more_than_half_of_it(
    running: str, n_processors: int, expected: bool
) -> None:
    assert is_busy(f"1.09 1.34 1.51 {running} 17072", n_processors, n_processors) == expected


def test_a_part_of_a_machine_counts_as_busy() -> None:
    assert is_busy("", 64, 2) and not is_busy("", 2, 2)


MACHINE = (
    CPU,
    card("cuda:0", bus_id=A, description="NVIDIA H200"),
    card("cuda:1", bus_id=B, description="NVIDIA H200 NVL"),
    card("vulkan:0", bus_id=A, description="NVIDIA H200"),
    card("vulkan:1", "software", description="llvmpipe (LLVM 15)"),
    card("vulkan:2", "igpu", description="Intel Graphics"),
)
NAMED = [
    ("cuda:1", "cuda:1"),
    ("vulkan:0", "vulkan:0"),
    ("h200 nvl", "cuda:1"),
    ("LLVMpipe", "vulkan:1"),
    ("intel", "vulkan:2"),
    ("nvidia h200", "cuda:0"),
    (B, "cuda:1"),
    ("00000000:02:00.0", "cuda:1"),
    ("02:00.0", "cuda:1"),
    ("2:0.0", "cuda:1"),
    ("GPU-22222222-aaaa-4444-5555-666666666666", "cuda:1"),
    ("gpu-22222222a", "cuda:1"),
    ("22222222aaaa44445555666666666666", "cuda:1"),
    ("22222222-bbbb-4444-5555-666666666666", "cuda:0"),
]
UUIDS = {A: "GPU-22222222-bbbb-4444-5555-666666666666", B: "GPU-22222222-aaaa-4444-5555-666666666666"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cards, one of them with two interfaces."""
    monkeypatch.setattr(MODULE, "devices", lambda: MACHINE)
    monkeypatch.setattr("pyggml.card_uuid.card_uuid", UUIDS.get)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(("name", "right"), NAMED)
def test_names_addresses_uuids_and_products_name_one_device(name: str, right: str) -> None:
    assert gg.device(name).name == right


@pytest.mark.usefixtures("machine")
def test_a_bus_id_names_the_cards_first_interface() -> None:
    assert gg.device(A).name == "cuda:0"


BOTH = f"cuda:0 (NVIDIA H200 at {A}), cuda:1 (NVIDIA H200 NVL at {B})"


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", ["h200", "cuda", "GPU-22222222", "gpu-2222"])
def test_a_name_that_fits_several_devices_lists_them(name: str) -> None:
    with pytest.raises(gg.DeviceError, match=re.escape(f"device '{name}' fits {BOTH}; name one of them")):
        gg.device(name)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", ["GPU-3333", "03:00.0", "gpu-", "GPU-222222223", "2222", "0:2:0:0"])
def test_an_address_or_uuid_of_no_device_here_is_refused(name: str) -> None:
    with pytest.raises(gg.DeviceError, match=f"no device '{name}'; this machine has cpu, cuda:0, cuda:1"):
        gg.device(name)


def test_an_address_of_emulated_cards_names_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    emulated = [card(f"cuda:{i}", bus_id=f"{A}-v{i}") for i in range(2)]
    monkeypatch.setattr(MODULE, "devices", lambda: (CPU, *emulated))
    assert gg.device(f"{A}-v1").name == "cuda:1"
    with pytest.raises(gg.DeviceError, match="fits cuda:0 .*, cuda:1"):
        gg.device(A)


def test_a_cards_uuid_comes_from_the_drivers_files_else_from_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card_uuid.cache_clear()
    monkeypatch.setattr("pyggml.card_uuid.CARDS", tmp_path)
    (tmp_path / A).mkdir()
    (tmp_path / A / "information").write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t {UUIDS[A]}\nBus Location: {A}\n")

    def find_card(bus_id: bytes, digits: Any, reason: Any, size: int) -> int:
        ffi.memmove(digits, UUIDS[B][4:].replace("-", "").encode(), 32)
        return 1 if bus_id.decode() == B else -1

    monkeypatch.setattr("pyggml.card_uuid.cuda_api", lambda: SimpleNamespace(find_card=find_card))
    assert [card_uuid(bus_id) for bus_id in (A, B, "0000:03:00.0")] == [UUIDS[A], UUIDS[B], None]
    monkeypatch.setattr("pyggml.card_uuid.cuda_api", lambda: None)
    card_uuid.cache_clear()
    assert card_uuid(B) is None
    card_uuid.cache_clear()


DEFAULTS = [
    ("the CPU alone", [CPU], {}, "cpu"),
    (
        "the card with most free memory",
        [CPU, card("cuda:0", bus_id=A), card("cuda:1", bus_id=B)],
        {"cuda:1": 2},
        "cuda:1",
    ),
    ("the first of equal cards", [CPU, card("cuda:0", bus_id=A), card("cuda:1", bus_id=B)], {}, "cuda:0"),
    ("no software renderer", [CPU, card("vulkan:0", "software")], {"vulkan:0": 9}, "cpu"),
    ("no integrated GPU", [CPU, card("vulkan:0", "igpu")], {"vulkan:0": 9}, "cpu"),
    ("no accelerator", [CPU, card("blas", "accel")], {"blas": 9}, "cpu"),
    (
        "no second interface",
        [CPU, card("cuda:0", bus_id=A), card("vulkan:0", bus_id=A)],
        {"vulkan:0": 9},
        "cuda:0",
    ),
    (
        "no second interface without an address",
        [CPU, card("cuda:0", bus_id=A, description="H200"), card("vulkan:0", description="H200")],
        {"vulkan:0": 9},
        "cuda:0",
    ),
    (
        "another maker's card",
        [CPU, card("cuda:0", bus_id=A), card("vulkan:0", bus_id=B)],
        {"vulkan:0": 9},
        "vulkan:0",
    ),
    ("cards without addresses", [CPU, card("vulkan:0"), card("vulkan:1")], {"vulkan:1": 9}, "vulkan:1"),
]


@pytest.mark.parametrize(
    ("found", "free", "right"), [case[1:] for case in DEFAULTS], ids=[case[0] for case in DEFAULTS]
)
def test_the_default_is(found: list[gg.Device], free: dict[str, int], right: str) -> None:
    assert choose_default(found, lambda d: free.get(d.name, 1)).name == right


def test_discrete_gpus_are_listed_once_each() -> None:
    gpus = [d for d in MACHINE if d.kind == "gpu"]
    assert [d.name for d in first_interfaces(gpus)] == ["cuda:0", "cuda:1"]
    assert gg.default_device() in gg.devices()


@pytest.mark.parametrize("threads", [0, -1, 513])
def test_thread_counts_are_bounded(threads: int) -> None:
    with pytest.raises(gg.DeviceError, match=f"threads = {threads}; 1 to 512 are possible"):
        gg.Backend("cpu", threads=threads)


def test_the_default_number_of_threads_is_that_of_the_process() -> None:
    assert gg.Backend("cpu").threads == gg.default_threads() >= 1


def in_folder(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process whose backend modules come from another folder."""
    lines = (
        "import pathlib, sys, pyggml as gg\n"
        f"sys.modules['pyggml.device'].LIBRARY_DIR = pathlib.Path({str(folder)!r})\n{code}"
    )
    return subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder of backend modules with the CPU's alone."""
    for path in LIBRARY_DIR.glob("*.so"):
        if path.stem.removeprefix("libggml-") not in ("cuda", "vulkan"):
            shutil.copy(path, tmp_path)
    return tmp_path


@pytest.mark.parametrize("module", ["cuda", "vulkan"])
def test_a_module_that_cannot_be_loaded_is_a_problem_in_the_loaders_words(folder: Path, module: str) -> None:
    (folder / f"libggml-{module}.so").write_bytes(b"this is no library")
    child = in_folder(
        folder, "print([(p.module, p.problem) for p in gg.module_problems()], [d.name for d in gg.devices()])"
    )
    assert child.returncode == 0, child.stderr
    assert f"[('{module}', '" in child.stdout
    assert "file too short" in child.stdout or "invalid ELF header" in child.stdout
    assert "['cpu']" in child.stdout


def test_asking_for_a_device_of_a_broken_module_says_why_there_is_none(folder: Path) -> None:
    (folder / "libggml-cuda.so").write_bytes(b"this is no library")
    child = in_folder(folder, "gg.device('cuda:0')")
    assert (
        "DeviceError: no device 'cuda:0'; this machine has cpu; the cuda module could not be loaded: "
        in child.stderr
    )


@pytest.mark.parametrize(("damage", "words"), [(True, "file too short"), (False, "none of them fits")])
def test_a_missing_or_broken_cpu_module_is_a_build_error(folder: Path, damage: bool, words: str) -> None:
    for path in folder.glob("libggml-cpu*.so"):
        path.write_bytes(b"") if damage else path.unlink()
    child = in_folder(folder, "gg.devices()")
    assert child.returncode == 1
    assert "BuildError: no CPU backend in" in child.stderr
    assert words in child.stderr
    assert "python build_ggml.py --install" in child.stderr


def test_a_wrong_log_level_is_an_error_that_names_the_variable(folder: Path) -> None:
    child = in_folder(folder, "import os; os.environ['PYGGML_LOG_LEVEL'] = 'loud'; gg.devices()")
    assert "BuildError: PYGGML_LOG_LEVEL=loud: it is a number" in child.stderr


@pytest.mark.parametrize(
    ("text", "threads"),
    [("200000 100000\n", 2), ("150000 100000\n", 2), ("10000 100000\n", 1), ("max 100000\n", 64), ("", 64)],
)
def test_a_containers_limit_of_time_bounds_the_threads(
    text: str, threads: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr("pyggml.backend._TIME_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(64)))
    assert gg.default_threads() == threads
