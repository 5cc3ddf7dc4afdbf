"""The build: its lock, the names of its results, the choice of backends, and what it says when a tool is missing.

Compiles nothing: a fake nvcc, cuBLAS and PCI tree stand for the real ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from third_party import (  # noqa: E402
    archive,
    backends,
    cache,
    cmake,
    cpu,
    cuda,
    gpu,
    layout,
    module,
    progress,
    toolchain,
    vulkan,
)
from third_party.errors import BuildError  # noqa: E402
from third_party.recipe import Recipe  # noqa: E402

HANG_S = 20.0
NO_CARDS = gpu.Cards(frozenset())
H200 = gpu.Cards(frozenset({"NVIDIA"}), (13, 0), ("90",))
ZEN4 = frozenset(
    "__x86_64__ __SSE4_2__ __AVX__ __F16C__ __FMA__ __AVX2__ __BMI2__ __AVX512F__ __AVX512CD__ __AVX512VL__ "
    "__AVX512DQ__ __AVX512BW__ __AVX512VBMI__ __AVX512VNNI__ __AVX512BF16__".split(" ")
)
TOOLS = toolchain.Toolchain("cc", "c++", "cmake", "ninja", "gcc 12.2", "cmake 3.25", ZEN4)
TOOLKIT = cuda.Toolkit(
    "/usr/local/cuda/bin/nvcc", Path("/usr/local/cuda"), (13, 0), (75, 80, 86, 89, 90, 100, 120)
)
CUBLAS = cuda.Library(Path("/usr/local/cuda/lib64/libcublas.so"), None)


def run_build(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "build_ggml.py"), *arguments]
    return subprocess.run(command, env={**os.environ, **env}, check=False, capture_output=True, text=True)


def a_recipe(**changes: object) -> Recipe:
    files = {"pyggml/native/plan.c": b"int x;"}
    return replace(Recipe(None, False, TOOLS, backends.Choice(), files), **changes)  # type: ignore[arg-type]


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a CUDA 13.0 toolkit, and without Vulkan."""
    monkeypatch.setattr(cuda, "find_toolkit", lambda: TOOLKIT)
    monkeypatch.setattr(cuda, "find_cublas", lambda toolkit: CUBLAS)
    monkeypatch.setattr(vulkan, "find", lambda include: "glslc is missing: install it")


@pytest.fixture
def pci(tmp_path: Path) -> Callable[..., Path]:
    """`pci(("0x10de", "0x030200"), …)`: a /sys with these (vendor, class) devices."""

    def make(*devices: tuple[str, str]) -> Path:
        for number, (vendor, kind) in enumerate(devices):
            folder = tmp_path / "bus" / "pci" / "devices" / f"0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"{vendor}\n")
            (folder / "class").write_text(f"{kind}\n")
        return tmp_path

    return make


# The lock and the archive


def test_lock_pins_one_distribution_by_hash() -> None:
    lock = archive.read_lock()
    assert (lock.name, lock.version, len(lock.sha256)) == ("llama-cpp-python", "0.3.36", 64)


def test_lock_without_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("llama-cpp-python==0.3.36\n")
    with pytest.raises(BuildError, match="--hash=sha256"):
        archive.read_lock(tmp_path / "lock")


def write_archive(path: Path, *names: str) -> str:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"ok"))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_unpack_writes_only_llama_cpp_without_git_stubs_and_escapes(tmp_path: Path) -> None:
    inside = "p-1/vendor/llama.cpp/"
    names = [
        f"{inside}ggml/a.c",
        f"{inside}.git",
        f"{inside}../../../../evil",
        "p-1/vendor/other/b.c",
        "p-1/c.c",
    ]
    sha256 = write_archive(tmp_path / "p.tar.gz", *names)
    archive.unpack(tmp_path / "p.tar.gz", sha256, tmp_path / "out" / "llama.cpp")
    files = [path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(map(str, files)) == ["out/llama.cpp/ggml/a.c", "p.tar.gz"]


def test_unpack_refuses_other_bytes(tmp_path: Path) -> None:
    write_archive(tmp_path / "p.tar.gz", "p-1/vendor/llama.cpp/ggml/a.c")
    with pytest.raises(BuildError, match="pins 0000"):
        archive.unpack(tmp_path / "p.tar.gz", "0" * 64, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("made", "named", "llama", "ggml"),
    [
        ("vendor/llama.cpp/ggml/CMakeLists.txt", ".", "vendor/llama.cpp", "vendor/llama.cpp/ggml"),
        ("ggml/CMakeLists.txt", ".", ".", "ggml"),
        ("ggml/CMakeLists.txt", "ggml", None, "ggml"),
    ],
)
def test_source_may_be_archive_llama_or_ggml(
    tmp_path: Path, made: str, named: str, llama: str | None, ggml: str
) -> None:
    for path in (tmp_path / made, (tmp_path / made).parent / "include" / "ggml.h"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    source = archive.unpacked(tmp_path / named)
    assert (source.llama, source.ggml) == (llama and tmp_path / llama, tmp_path / ggml)


def test_identity_of_an_unpacked_tree_follows_its_content(tmp_path: Path) -> None:
    (tmp_path / "ggml").mkdir()
    (tmp_path / "ggml" / "CMakeLists.txt").write_text("one")
    before = archive.unpacked(tmp_path).identity
    (tmp_path / "ggml" / "CMakeLists.txt").write_text("two")
    assert archive.unpacked(tmp_path).identity != before


# Names of results


@pytest.mark.parametrize(
    "changes",
    [
        {"own_files": {"pyggml/native/plan.c": b"int y;"}},
        {"own_files": {"pyggml/native/other.c": b"int x;"}},
        {"tools": replace(TOOLS, compiler="gcc 13.1")},
        {"tools": replace(TOOLS, macros=ZEN4 - {"__AVX512BF16__"})},
        {"is_portable": True},
        {"choice": backends.Choice(cuda=backends.Cuda(TOOLKIT, CUBLAS, "90-real"))},
    ],
)
def test_anything_that_changes_the_libraries_changes_their_folder(changes: dict[str, object]) -> None:
    assert a_recipe(**changes).lib != a_recipe().lib


@pytest.mark.parametrize(
    "changes",
    [
        {"tools": replace(TOOLS, cmake="/elsewhere/cmake", cmake_version="cmake 4.4")},
        {"choice": backends.Choice(notes=["CUDA skipped"])},
    ],
)
def test_paths_and_cmakes_version_do_not_change_the_folder(changes: dict[str, object]) -> None:
    assert a_recipe(**changes).lib == a_recipe().lib


def test_changed_own_files_keep_the_tree_of_ggml() -> None:
    assert a_recipe(own_files={}).tree == a_recipe().tree


def test_place_of_cublas_does_not_change_the_folder() -> None:
    moved = replace(CUBLAS, path=Path("/venv/nvidia/cu13/lib/libcublas.so.13"), include=Path("/venv/include"))
    folders = {
        a_recipe(choice=backends.Choice(cuda=backends.Cuda(TOOLKIT, library, "90-real"))).lib
        for library in (CUBLAS, moved)
    }
    assert len(folders) == 1


def test_own_libraries_are_loadable_modules_and_the_reference_is_native() -> None:
    ours, theirs = a_recipe().module_options(), a_recipe().reference_options()
    names = ("GGML_BACKEND_DL", "GGML_NATIVE", "GGML_CUDA_NCCL", "GGML_LLAMAFILE", "GGML_CUDA_GRAPHS")
    assert [ours.get(name) for name in names] == ["ON", "OFF", "OFF", "ON", "ON"]
    assert [theirs.get(name) for name in names] == [None, "ON", "ON", "ON", "ON"]


# Instruction sets


@pytest.mark.parametrize(
    ("macros", "name", "value"),
    [
        (ZEN4, "GGML_AVX512_BF16", "ON"),
        (ZEN4, "GGML_AVX_VNNI", "OFF"),
        (ZEN4 - {"__AVX512BW__"}, "GGML_AVX512", "OFF"),
        (frozenset({"__x86_64__"}), "GGML_AVX", "OFF"),
        (frozenset({"__aarch64__"}), "GGML_CPU_ARM_ARCH", "armv8-a"),
        (
            frozenset({"__aarch64__", "__ARM_FEATURE_SVE", "__ARM_FEATURE_DOTPROD"}),
            "GGML_CPU_ARM_ARCH",
            "armv8.2-a+dotprod+sve",
        ),
    ],
)
def test_compiler_macros_choose_instruction_sets(macros: frozenset[str], name: str, value: str) -> None:
    assert cpu.options(macros)[name] == value


# Backends


@pytest.mark.parametrize(
    ("devices", "vendors"),
    [
        ((("0x10de", "0x030200"),), {"NVIDIA"}),
        ((("0x1002", "0x030000"), ("0x8086", "0x038000")), {"AMD", "Intel"}),
        ((("0x1a03", "0x030000"), ("0x1af4", "0x030000")), set()),
        ((("0x10de", "0x020000"),), set()),
    ],
)
def test_cards_are_read_from_the_pci_tree(
    pci: Callable[..., Path], tmp_path: Path, devices: tuple[tuple[str, str], ...], vendors: set[str]
) -> None:
    assert gpu.find(pci(*devices), tmp_path / "dev", tmp_path / "proc").vendors == vendors


def test_cuda_is_built_for_the_gpu_that_is_there(with_cuda: None) -> None:
    choice = backends.choose(None, H200)
    assert choice.cuda is not None
    assert (choice.names, choice.cuda.architectures, choice.warnings) == (["cpu", "cuda"], "90-real", [])


def test_nvcc_without_a_gpu_is_a_note_that_says_how_to_force_it(with_cuda: None) -> None:
    choice = backends.choose(None, NO_CARDS)
    assert (choice.names, choice.warnings, len(choice.notes)) == (["cpu"], [], 1)
    assert "--backends cpu,cuda" in choice.notes[0]


@pytest.mark.parametrize(
    ("cards", "toolkit", "cublas", "remedy"),
    [
        (H200, None, CUBLAS, "nvcc is missing"),
        (H200, TOOLKIT, None, "pip install nvidia-cublas;"),
        (H200, replace(TOOLKIT, version=(12, 4)), None, "pip install nvidia-cublas-cu12"),
        (H200, replace(TOOLKIT, version=(11, 8)), CUBLAS, "CUDA 12 or 13"),
        (H200, replace(TOOLKIT, architectures=(75, 80)), CUBLAS, "cannot compile for sm_90"),
        (replace(H200, driver_cuda=(12, 4)), TOOLKIT, CUBLAS, "a CUDA 12 toolkit"),
        (replace(H200, driver_cuda=(0, 0)), TOOLKIT, CUBLAS, "nvidia-driver"),
    ],
)
def test_unusable_nvidia_gpu_is_one_warning_with_its_remedy(
    with_cuda: None,
    monkeypatch: pytest.MonkeyPatch,
    cards: gpu.Cards,
    toolkit: cuda.Toolkit | None,
    cublas: cuda.Library | None,
    remedy: str,
) -> None:
    monkeypatch.setattr(cuda, "find_toolkit", lambda: toolkit)
    monkeypatch.setattr(cuda, "find_cublas", lambda found: cublas)
    choice = backends.choose(None, cards)
    assert (choice.names, len(choice.warnings)) == (["cpu"], 1)
    assert remedy in choice.warnings[0]


def test_named_cuda_without_nvcc_is_an_error(with_cuda: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_toolkit", lambda: None)
    with pytest.raises(BuildError, match="nvcc is missing"):
        backends.choose(frozenset({"cuda"}), NO_CARDS)


@pytest.mark.parametrize(
    ("named", "machine", "expected"),
    [
        ("native", ("90", "86"), "90-real;86-real"),
        ("all", (), "75-real;80-real;86-real;89-real;90-real;100-real;120-real"),
        ("80, sm_90", (), "80-real;90-real"),
    ],
)
def test_cuda_architectures_as_cmake_takes_them(named: str, machine: tuple[str, ...], expected: str) -> None:
    assert cuda.architectures(named, TOOLKIT, machine) == expected


@pytest.mark.parametrize(
    ("named", "hint"), [("native", "no NVIDIA GPU"), ("60", "75,80"), ("hopper", "native, all")]
)
def test_impossible_cuda_architecture_is_an_error_that_names_what_works(named: str, hint: str) -> None:
    with pytest.raises(BuildError, match=hint):
        cuda.architectures(named, TOOLKIT, ())


def test_vulkan_is_not_chosen_for_a_software_driver_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kit = vulkan.Kit("glslc", "1", tmp_path, tmp_path, tmp_path, (1, 4, 309))
    monkeypatch.setattr(vulkan, "find", lambda include: kit)
    monkeypatch.setattr(vulkan, "has_driver", lambda: True)
    for has_node, vendors, chosen in ((False, (), None), (True, (), kit), (False, ("AMD",), kit)):
        monkeypatch.setattr(vulkan, "has_render_node", lambda has_node=has_node: has_node)
        assert backends.choose(None, gpu.Cards(frozenset(vendors))).vulkan is chosen
    monkeypatch.setattr(vulkan, "has_render_node", lambda: False)
    assert backends.choose(frozenset({"cpu", "vulkan"}), gpu.Cards(frozenset())).vulkan is kit


@pytest.mark.parametrize(("patch", "is_enough"), [(239, False), (309, True)])
def test_old_vulkan_headers_are_told_by_their_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: int, is_enough: bool
) -> None:
    minor = 3 if patch < 300 else 4
    (tmp_path / "vulkan").mkdir()
    (tmp_path / "vulkan" / "vulkan_core.h").write_text(
        f"#define VK_HEADER_VERSION {patch}\n"
        f"#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, {minor}, VK_HEADER_VERSION)\n"
    )
    (tmp_path / "libvulkan.so.1").write_text("")
    (tmp_path / "share" / "cmake" / "SPIRV-Headers").mkdir(parents=True)
    (tmp_path / "share" / "cmake" / "SPIRV-Headers" / "SPIRV-HeadersConfig.cmake").write_text("")
    monkeypatch.setenv("CMAKE_PREFIX_PATH", str(tmp_path))
    monkeypatch.setattr(vulkan, "LIBRARY_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(toolchain, "which", lambda name: f"/usr/bin/{name}")
    kit = vulkan.find(str(tmp_path))
    assert (
        isinstance(kit, vulkan.Kit) if is_enough else "1.3.239" in str(kit) and "--vulkan-include" in str(kit)
    )


# The cache


def test_interrupted_work_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), cache.filling(tmp_path / "lib") as folder:
        (folder / "half").write_text("")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_tidy_removes_only_what_was_not_used_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYGGML_CACHE", str(tmp_path))
    for name in ("old", "new"):
        (tmp_path / "lib" / name).mkdir(parents=True)
    os.utime(tmp_path / "lib" / "old", (0, 0))
    cache.tidy()
    assert [path.name for path in (tmp_path / "lib").iterdir()] == ["new"]


def test_second_place_replaces_the_first_whole(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "build.json").write_text(name)
        (folder / "_ggml.abi3.so").write_text(name)
        (folder / f"lib{name}.so").write_text(name)
        module.place(folder, tmp_path / "package")
    files = {path.name: path.read_text() for path in (tmp_path / "package").rglob("*") if path.is_file()}
    assert files == {"build.json": "two", "_ggml.abi3.so": "two", "libtwo.so": "two"}


# The command line


def test_print_names_the_folders_and_builds_nothing(tmp_path: Path) -> None:
    done = run_build("--json", PYGGML_CACHE=str(tmp_path))
    found = json.loads(done.stdout)
    assert all(found[name].startswith(str(tmp_path)) for name in ("lib", "source", "reference"))
    assert set(found["has"].values()) == {False}
    assert run_build("--print", "lib", PYGGML_CACHE=str(tmp_path)).stdout.strip() == found["lib"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "remedy"),
    [
        ("cc", "build-essential"),
        ("c++", "build-essential"),
        ("cmake", "pip install cmake"),
        ("ninja", "ninja-build"),
    ],
)
def test_missing_tool_is_one_line_and_status_2(tmp_path: Path, missing: str, remedy: str) -> None:
    for tool in {"cc", "c++", "cmake", "ninja"} - {missing}:
        (tmp_path / tool).symlink_to(shutil.which("true") or "/bin/true")
    program = f"import sys; sys.executable = '/nowhere/python'; sys.path.insert(0, {str(ROOT)!r}); import build_ggml; "
    command = [sys.executable, "-c", program + "sys.exit(build_ggml.main([]))"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert remedy in done.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [(("--backends", "cpu,metal"), "cpu, cuda, vulkan"), (("--source", "/nowhere"), "no ggml there")],
)
def test_wrong_option_is_one_line_and_status_2(arguments: tuple[str, ...], hint: str) -> None:
    done = run_build(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr.splitlines()[-1]


def test_programs_that_ninja_starts_find_a_ninja_of_a_virtual_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ninja = tmp_path / "bin" / "ninja"
    ninja.parent.mkdir()
    ninja.write_text("#!/bin/sh\ncommand -v ninja\n")
    ninja.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(p for p in ("/usr/bin", "/bin") if not Path(p, "ninja").exists()))
    assert cmake.build(replace(TOOLS, ninja=str(ninja)), tmp_path, [], 1, "building") == f"{ninja}\n"


def test_progress_tells_steps_from_compiler_output() -> None:
    shown = progress.Progress("building")
    assert [shown.step(line) for line in ("[3/7] Building a.o\n", "a.c:1:1: warning: x\n")] == [True, False]


def test_progress_goes_on_while_a_step_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "TICK_S", 0.01)
    monkeypatch.setattr(progress, "PLAIN_INTERVAL_S", 0.02)
    shown, said = progress.Progress("building"), ""
    end = time.monotonic() + HANG_S
    with shown:
        shown.step("[3/7] Building a.o")
        while said.count("building 3/7, ") < 3 and time.monotonic() < end:
            said += capsys.readouterr().err
            time.sleep(0.01)
    assert said.startswith("building, 0 s\n") and said.count("building 3/7, ") >= 3
    assert "building: done in " in capsys.readouterr().err


@pytest.mark.parametrize("how", ["status", "error"])
def test_progress_says_that_a_build_failed(how: str, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(BuildError), progress.Progress("building") as shown:
        shown.has_failed = how == "status"
        if how == "error":
            raise BuildError("no")
    assert capsys.readouterr().err.splitlines()[-1] == "building: failed after 0 s"


# The packages


def test_folders_map_to_one_import_name() -> None:
    packages = layout.packages(ROOT)
    assert packages["pyggml"] == "pyggml"
    assert packages["pyggml.engine"] == "engine"
    assert not any(name.startswith(("engine", "server", "third_party", "tests")) for name in packages)


def test_installed_package_is_typed() -> None:
    import pyggml

    package = Path(pyggml.__file__).parent
    assert [(package / part / "py.typed").exists() for part in ("", "engine")] == [True, True]
