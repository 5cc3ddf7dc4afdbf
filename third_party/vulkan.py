"""What the Vulkan module needs: glslc, new enough headers, SPIR-V headers and the loader library."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import cache, toolchain

OLDEST_HEADERS = (1, 3, 275)
INSTALL = "sudo apt install glslc libvulkan-dev spirv-headers"
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
)
DRIVER_LISTS = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")


@dataclass(frozen=True)
class Kit:
    """The tools to compile the Vulkan module with."""

    glslc: str
    glslc_version: str
    include: Path
    library: Path
    spirv: Path
    headers: tuple[int, ...]


def find(include: str | None) -> Kit | str:
    """Return the kit, or one line that says what is missing; `include` names another folder of Vulkan headers."""
    sdk = os.environ.get("VULKAN_SDK")
    glslc = toolchain.which("glslc") or (toolchain.which(f"{sdk}/bin/glslc") if sdk else None)
    if glslc is None:
        return f"glslc is missing: {INSTALL}"
    named = include or os.environ.get("Vulkan_INCLUDE_DIR")
    usual = [f"{sdk}/include"] * bool(sdk) + ["/usr/include", "/usr/local/include", str(fetched_headers())]
    folders = [Path(name).expanduser().resolve() for name in ([named] if named else usual)]
    chosen = _choose_headers(folders)
    if chosen is None:
        places = ", ".join(map(str, folders))
        return f"no vulkan/vulkan_core.h in {places}: {INSTALL} (or name its folder with --vulkan-include)"
    header, version = chosen
    if version < OLDEST_HEADERS:
        return (
            f"the Vulkan headers in {header} are {_dotted(version)}, ggml needs {_dotted(OLDEST_HEADERS)}: "
            "python3 -m third_party.vulkan_packages fetches newer ones on Debian; "
            "elsewhere unpack a newer libvulkan-dev and pass its usr/include with --vulkan-include"
        )
    libraries = [Path(f"{sdk}/lib")] if sdk else []
    libraries += map(Path, LIBRARY_FOLDERS)
    found = [
        folder / name
        for name in ("libvulkan.so", "libvulkan.so.1")
        for folder in libraries
        if (folder / name).exists()
    ]
    if not found:
        return "the Vulkan loader is missing: sudo apt install libvulkan1"
    spirv = [folder for folder in _spirv_folders(sdk) if (folder / "SPIRV-HeadersConfig.cmake").exists()]
    if not spirv:
        return f"the SPIR-V headers are missing: {INSTALL}"
    glslc_version = " ".join(toolchain.output([glslc, "--version"]).split())
    return Kit(glslc, glslc_version, header, found[0], spirv[0], version)


def header_version(text: str) -> tuple[int, ...]:
    """Return the version that a vulkan_core.h declares, (0, 0, 0) when it declares none."""
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", text)
    whole = re.search(r"#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(\d+, (\d+), (\d+),", text)
    return (int(whole[1]), int(whole[2]), int(patch[1])) if patch and whole else (0, 0, 0)


def _choose_headers(folders: list[Path]) -> tuple[Path, tuple[int, ...]] | None:
    """The first folder of headers that are new enough, else the first of any, and their version."""
    files = [(folder, folder / "vulkan" / "vulkan_core.h") for folder in folders]
    found = [(folder, header_version(file.read_text())) for folder, file in files if file.exists()]
    return next((pair for pair in found if pair[1] >= OLDEST_HEADERS), found[0] if found else None)


def _spirv_folders(sdk: str | None) -> list[Path]:
    prefixes = [*os.environ.get("CMAKE_PREFIX_PATH", "").split(os.pathsep), sdk, "/usr", "/usr/local"]
    return [
        Path(p, kind, "cmake", "SPIRV-Headers") for p in prefixes if p for kind in ("share", "lib", "lib64")
    ]


def fetched_headers() -> Path:
    """Return the folder in the build cache for headers that are newer than this machine's own."""
    return cache.root() / "vulkan-headers"


def has_driver() -> bool:
    """Return whether any Vulkan driver is registered on this machine."""
    return any(next(Path(folder).glob("*.json"), None) for folder in DRIVER_LISTS)


def has_render_node(dri: Path = Path("/dev/dri")) -> bool:
    """Return whether the kernel drives any GPU; a driver without one can only be a software renderer."""
    return next(dri.glob("renderD*"), None) is not None


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
