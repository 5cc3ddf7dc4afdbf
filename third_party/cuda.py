"""The CUDA toolkit: nvcc, cuBLAS (the toolkit's or the PyPI wheel's), the driver library and the architectures.

CUDA 12 and 13. Full paths are handed to CMake, since the wheels carry only versioned names (libcublas.so.13).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from . import toolchain
from .errors import BuildError

MAJORS = (12, 13)
ARCHITECTURES = (60, 61, 70, 75, 80, 86, 89, 90, 100, 120)
SYSTEM_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
)
WHEEL_FOLDERS = {12: ("cublas", "nccl"), 13: ("cu13", "nccl")}


@dataclass(frozen=True)
class Toolkit:
    """One nvcc with its root folder, version and the compute architectures that it can compile for."""

    nvcc: str
    root: Path
    version: tuple[int, int]
    architectures: tuple[int, ...]

    @property
    def name(self) -> str:
        """The version as text, "13.0"."""
        return "{}.{}".format(*self.version)


@dataclass(frozen=True)
class Library:
    """A shared library by full path, and the folder of its headers (None where the compiler finds them)."""

    path: Path
    include: Path | None


def find_toolkit() -> Toolkit | None:
    """Return the first nvcc of CUDACXX, PATH, /usr/local/cuda and the PyPI wheels; None without one."""
    candidates = [os.environ.get("CUDACXX"), toolchain.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    candidates += [
        str(site / "nvidia" / wheel / "bin" / "nvcc") for site in _sites() for wheel in ("cu13", "cuda_nvcc")
    ]
    for nvcc in candidates:
        version = re.search(r"release (\d+)\.(\d+)", toolchain.output([nvcc, "--version"])) if nvcc else None
        if nvcc and version:
            top = re.search(
                r"^#\$ TOP=(.+)$",
                toolchain.output([nvcc, "--dryrun", "-E", "-x", "cu", os.devnull]),
                re.MULTILINE,
            )
            root = Path(top[1]) if top else Path(nvcc).resolve().parent.parent
            architectures = re.findall(r"compute_(\d+)", toolchain.output([nvcc, "--list-gpu-arch"]))
            return Toolkit(
                nvcc, root.resolve(), (int(version[1]), int(version[2])), tuple(map(int, architectures))
            )
    return None


def find_cublas(toolkit: Toolkit) -> Library | None:
    """Return cuBLAS of the toolkit's major version: the toolkit's own, else the wheel's."""
    for folder in _library_folders(toolkit):
        if (folder / "libcublas.so").exists():
            return Library(folder / "libcublas.so", None)
    return _from_wheel(toolkit.version[0], f"libcublas.so.{toolkit.version[0]}", "cublas_v2.h")


def find_nccl(toolkit: Toolkit) -> Library | None:
    """Return NCCL of the system or of the wheel."""
    for folder in _library_folders(toolkit):
        if (folder / "libnccl.so").exists():
            return Library(folder / "libnccl.so", None)
    return _from_wheel(toolkit.version[0], "libnccl.so.2", "nccl.h")


def driver_library(toolkit: Toolkit, cc: str, folder: Path) -> Path:
    """Return a libcuda to link against: the driver's, the toolkit's stub, or an empty one made in `folder`."""
    stubs = [path / "stubs" for path in _library_folders(toolkit)]
    for place in (*_library_folders(toolkit), *stubs):
        for name in ("libcuda.so", "libcuda.so.1"):
            if (place / name).exists():
                return place / name
    stub = folder / "libcuda.so"
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [cc, "-shared", "-Wl,-soname,libcuda.so.1", "-o", str(stub), "-x", "c", os.devnull], check=True
    )
    return stub


def architectures(named: str, toolkit: Toolkit, machine: tuple[str, ...]) -> str:
    """Return CMAKE_CUDA_ARCHITECTURES for `native`, `all` or a list such as `80,sm_90`.

    Raises: BuildError for `native` without a GPU and for an architecture that this toolkit cannot compile.
    """
    able = [arch for arch in ARCHITECTURES if arch in toolkit.architectures]
    if named == "native":
        if not machine:
            raise BuildError(
                f"--cuda-arch native: this machine shows no NVIDIA GPU; name some of {_csv(able)}, or all"
            )
        wanted = [int(capability) for capability in machine]
    elif named == "all":
        wanted = able
    else:
        words = [word.strip().removeprefix("sm_") for word in named.split(",")]
        if not all(word.isdigit() for word in words):
            raise BuildError(f"--cuda-arch {named}: use native, all or a list such as 80,90")
        wanted = [int(word) for word in words]
    if missing := [arch for arch in wanted if arch not in toolkit.architectures]:
        raise BuildError(
            f"CUDA {toolkit.name} cannot compile for sm_{missing[0]}; it can for {_csv(list(toolkit.architectures))}"
        )
    return ";".join(f"{arch}-real" for arch in wanted)


def _csv(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _sites() -> list[Path]:
    # A PEP 517 build environment hides the installing environment's packages from sys.path, not from sysconfig.
    places = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return [Path(place) for place in dict.fromkeys(places) if place]


def _library_folders(toolkit: Toolkit) -> list[Path]:
    own = [toolkit.root / "lib64", toolkit.root / "lib", *sorted((toolkit.root / "targets").glob("*/lib"))]
    return [folder for folder in (*own, *map(Path, SYSTEM_LIBRARIES)) if folder.is_dir()]


def _from_wheel(major: int, library: str, header: str) -> Library | None:
    for site in _sites():
        for wheel in WHEEL_FOLDERS[major]:
            base = site / "nvidia" / wheel
            if (base / "lib" / library).exists() and (base / "include" / header).exists():
                return Library(base / "lib" / library, base / "include")
    return None
