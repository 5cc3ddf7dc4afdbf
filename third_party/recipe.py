"""What to build, as CMake options, and under which names the results lie in the cache.

A name is made from facts that change the result (pinned source, options, compilers, CPU, our own native files), never
from paths: checkouts, virtual environments and build environments share what is built. Pure data; runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from . import archive, cache, cpu, cuda
from .backends import Choice
from .toolchain import Toolchain

ROOT = Path(__file__).resolve().parent.parent
OURS = ("pyggml/native/**/*.c", "pyggml/native/**/*.h", "pyggml/native/**/*.cu", "pyggml/native/**/*.cuh")
TILES = ROOT / "third_party" / "amx_tiles.h"
BINDING = ("pyggml/decl/*.h", "pyggml/_build_ffi.py", "third_party/CMakeLists.txt", "third_party/amx_tiles.h",
           "third_party/reads_in_order.h")  # fmt: skip
ORIGIN = "$ORIGIN"
# site-packages/pyggml/_lib beside the wheels' site-packages/nvidia/...
WHEEL_RPATHS = {
    12: ("$ORIGIN/../../nvidia/cublas/lib", "$ORIGIN/../../nvidia/cuda_runtime/lib"),
    13: ("$ORIGIN/../../nvidia/cu13/lib",),
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a build; `is_portable` compiles all CPU variants instead of this machine's."""

    source: Path | None
    is_portable: bool
    tools: Toolchain
    choice: Choice
    own_files: dict[str, bytes]

    @property
    def identity(self) -> str:
        """A name for the source's content."""
        return (
            archive.unpacked(self.source).identity if self.source else f"sha256:{archive.read_lock().sha256}"
        )

    @property
    def lib(self) -> Path:
        """The folder of our libraries, whether built or not."""
        return (
            cache.root()
            / "lib"
            / cache.key(self._facts(), self.module_options(), cache.digest(self.own_files))
        )

    @property
    def tree(self) -> Path:
        """The folder of CMake's work for our libraries, kept so that a changed file compiles alone."""
        # Vulkan only adds a library, so builds with and without it share a tree and what is compiled there.
        base = replace(self, choice=replace(self.choice, vulkan=None))
        # One CMake's tree is no use to another: it would compile everything again.
        facts = [base._facts(), base.module_options(), self.tools.cmake_version]
        return cache.root() / "build" / cache.key(facts)

    @property
    def reference(self) -> Path:
        """The folder of llama.cpp's own programs, whether built or not."""
        key = cache.key(self._facts(), self.reference_options(), TILES.read_text())
        return cache.root() / "reference" / key / "bin"

    def module_options(self) -> dict[str, str]:
        """Return the CMake options of our libraries."""
        if self.is_portable:
            variants = {"GGML_CPU_ALL_VARIANTS": "ON"}
        else:
            variants = cpu.options(self.tools.macros)
        return {
            **self._common_options(),
            **variants,
            "BUILD_SHARED_LIBS": "ON",
            "GGML_BACKEND_DL": "ON",
            "GGML_NATIVE": "OFF",
            "GGML_ALL_WARNINGS": "OFF",
            "GGML_CUDA_NCCL": "OFF",
        }

    def reference_options(self) -> dict[str, str]:
        """Return the CMake options of llama.cpp's own programs, each at its fastest."""
        return {
            **self._common_options(),
            "BUILD_SHARED_LIBS": "ON",
            "GGML_NATIVE": "ON",
            "GGML_CUDA_NCCL": "ON",
            "LLAMA_ALL_WARNINGS": "OFF",
            "LLAMA_OPENSSL": "OFF",
            "LLAMA_BUILD_UI": "OFF",
            "LLAMA_USE_PREBUILT_UI": "OFF",
            "LLAMA_BUILD_APP": "OFF",
            "LLAMA_BUILD_EXAMPLES": "OFF",
            "LLAMA_BUILD_TESTS": "ON",
        }

    def path_options(self, folder: Path) -> dict[str, str]:
        """Return the CMake options that only say where things are; `folder` takes a stub of the driver library."""
        options = {
            "CMAKE_MAKE_PROGRAM": self.tools.ninja,
            "CMAKE_C_COMPILER": self.tools.cc,
            "CMAKE_CXX_COMPILER": self.tools.cxx,
        }
        rpaths = [ORIGIN]
        if chosen := self.choice.cuda:
            toolkit, cublas = chosen.toolkit, chosen.cublas
            options["CMAKE_CUDA_COMPILER"] = toolkit.nvcc
            options["CUDAToolkit_ROOT"] = str(toolkit.root)
            options["CUDA_cublas_LIBRARY"] = str(cublas.path)
            options["CUDA_cuda_driver_LIBRARY"] = str(cuda.driver_library(toolkit, self.tools.cc, folder))
            options["CMAKE_EXE_LINKER_FLAGS"] = "-Wl,--allow-shlib-undefined"
            # The stub is empty: a linker that drops what nothing seems to need would leave the driver out.
            options["CMAKE_MODULE_LINKER_FLAGS"] = "-Wl,--no-as-needed"
            if cublas.include:
                options["CMAKE_CUDA_FLAGS"] = f"-I{cublas.include}"
            rpaths += [
                *WHEEL_RPATHS[toolkit.version[0]],
                str(toolkit.root / "lib64"),
                str(cublas.path.parent),
            ]
            if nccl := cuda.find_nccl(toolkit):
                options["NCCL_LIBRARY"] = str(nccl.path)
                if nccl.include:
                    options["NCCL_INCLUDE_DIR"] = str(nccl.include)
        if kit := self.choice.vulkan:
            options["Vulkan_GLSLC_EXECUTABLE"] = kit.glslc
            options["Vulkan_INCLUDE_DIR"] = str(kit.include)
            options["Vulkan_LIBRARY"] = str(kit.library)
            options["SPIRV-Headers_DIR"] = str(kit.spirv)
        options["CMAKE_INSTALL_RPATH"] = ";".join(rpaths)
        return options

    def facts(self) -> dict[str, object]:
        """Return what `pyggml devices` tells about the build, for build.json."""
        chosen, kit = self.choice.cuda, self.choice.vulkan
        return {
            "key": self.lib.name,
            "source": self.identity,
            "lock": archive.read_lock().version,
            "backends": self.choice.names,
            "is_portable": self.is_portable,
            "compiler": self.tools.compiler,
            "cpu": {k: v for k, v in cpu.options(self.tools.macros).items() if v != "OFF"}
            if not self.is_portable
            else {},
            "cuda": {"version": chosen.toolkit.name, "architectures": chosen.architectures}
            if chosen
            else None,
            "vulkan": {"headers": ".".join(map(str, kit.headers))} if kit else None,
            "options": self.module_options(),
            "notes": self.choice.notes,
            "warnings": self.choice.warnings,
        }

    def _common_options(self) -> dict[str, str]:
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON",
            "GGML_LLAMAFILE": "ON",
            "GGML_CUDA_GRAPHS": "ON",
            "GGML_CUDA": "ON" if self.choice.cuda else "OFF",
            "GGML_VULKAN": "ON" if self.choice.vulkan else "OFF",
        }
        if self.choice.cuda:
            options["CMAKE_CUDA_ARCHITECTURES"] = self.choice.cuda.architectures
        return options

    def _facts(self) -> list[object]:
        chosen, kit = self.choice.cuda, self.choice.vulkan
        native = [] if self.is_portable else sorted(cpu.options(self.tools.macros).items())
        return [
            self.identity,
            self.tools.compiler,
            native,
            chosen and chosen.toolkit.name,
            kit and [*kit.headers, kit.glslc_version],
        ]


def read_own_files() -> dict[str, bytes]:
    """Return this project's own files that the libraries are compiled from, by their paths in the checkout."""
    paths = [path for pattern in (*OURS, *BINDING) for path in ROOT.glob(pattern)]
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths}
