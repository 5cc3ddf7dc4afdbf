"""Which of ggml's backends to build here: those the user names, else those that this machine can compile and use.

A GPU that would stay unused is a warning with the command that mends it; a toolkit without a GPU is only a note.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from . import cuda, vulkan
from .errors import BuildError
from .gpu import Cards

NAMES = ("cpu", "cuda", "vulkan")
AGAIN = "then run python build_ggml.py again"


@dataclass(frozen=True)
class Cuda:
    """What the CUDA module is compiled with; `architectures` as CMake takes them."""

    toolkit: cuda.Toolkit
    cublas: cuda.Library
    architectures: str


@dataclass
class Choice:
    """The backends to build, and the lines to show about those that are not built."""

    cuda: Cuda | None = None
    vulkan: vulkan.Kit | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """The chosen backends' names."""
        return ["cpu"] + ["cuda"] * (self.cuda is not None) + ["vulkan"] * (self.vulkan is not None)


def choose(
    named: frozenset[str] | None,
    cards: Cards,
    cuda_arch: str | None = None,
    vulkan_include: str | None = None,
) -> Choice:
    """Return the choice for `named` backends, or for this machine when that is None.

    Raises: BuildError when a named backend cannot be built here.
    """
    if named is not None and (unknown := sorted(named - set(NAMES))):
        raise BuildError(f"--backends: no backend {unknown[0]!r}; there are {', '.join(NAMES)}")
    choice = Choice()
    if named is None or "cuda" in named:
        _choose_cuda(choice, named is not None or cuda_arch is not None, cards, cuda_arch)
    if named is None or "vulkan" in named:
        _choose_vulkan(choice, named is not None or vulkan_include is not None, cards, vulkan_include)
    return choice


def _choose_cuda(choice: Choice, forced: bool, cards: Cards, cuda_arch: str | None) -> None:
    toolkit = cuda.find_toolkit()
    is_here = "NVIDIA" in cards.vendors
    found = _cuda_kit(toolkit, cards, cuda_arch) if forced or is_here else None
    if isinstance(found, Cuda):
        obstacle = _driver_obstacle(cards, found.toolkit)
        if obstacle and not forced:
            choice.warnings.append(f"NVIDIA GPU not usable, building without CUDA: {obstacle}; {AGAIN}")
        else:
            choice.cuda = found
    elif forced:
        raise BuildError(f"CUDA was asked for: {found}")
    elif is_here:
        choice.warnings.append(f"NVIDIA GPU not usable, building without CUDA: {found}; {AGAIN}")
    elif toolkit:
        choice.notes.append(
            f"CUDA skipped: nvcc {toolkit.name} is here but no NVIDIA GPU; "
            "force it with --backends cpu,cuda --cuda-arch 90"
        )


def _cuda_kit(toolkit: cuda.Toolkit | None, cards: Cards, cuda_arch: str | None) -> Cuda | str:
    if toolkit is None:
        return "nvcc is missing: sudo apt install cuda-toolkit (NVIDIA's own package of CUDA 12 or 13)"
    if toolkit.version[0] not in cuda.MAJORS:
        return (
            f"nvcc is of CUDA {toolkit.name}, ggml needs CUDA 12 or 13: install NVIDIA's cuda-toolkit package"
        )
    cublas = cuda.find_cublas(toolkit)
    if cublas is None:
        wheel = "nvidia-cublas" if toolkit.version[0] > 12 else "nvidia-cublas-cu12"
        return f"cuBLAS for CUDA {toolkit.name} is missing: pip install {wheel}"
    named = cuda_arch or ("native" if cards.compute_capabilities else "all")
    try:
        return Cuda(toolkit, cublas, cuda.architectures(named, toolkit, cards.compute_capabilities))
    except BuildError as error:
        if cuda_arch:
            raise
        return str(error)


def _driver_obstacle(cards: Cards, toolkit: cuda.Toolkit) -> str | None:
    served = cards.driver_cuda[0]
    if served == 0:
        return (
            "no working driver: sudo apt install nvidia-driver and reboot (start a container with --gpus all)"
        )
    if served < toolkit.version[0]:
        return (
            f"the driver serves CUDA {served}, nvcc is {toolkit.name}: "
            f"update it (sudo apt install nvidia-driver) or install a CUDA {served} toolkit"
        )
    return None


def _choose_vulkan(choice: Choice, forced: bool, cards: Cards, include: str | None) -> None:
    kit = vulkan.find(include)
    others = " and ".join(sorted(cards.vendors - {"NVIDIA"}))
    if forced:
        if isinstance(kit, str):
            raise BuildError(f"Vulkan was asked for: {kit}")
        choice.vulkan = kit
    elif isinstance(kit, str):
        if others:
            choice.warnings.append(f"{others} GPU not usable, building without Vulkan: {kit}; {AGAIN}")
        elif not kit.startswith("glslc"):
            choice.notes.append(f"Vulkan skipped: {kit}")
    elif vulkan.has_driver() and (cards.vendors or vulkan.has_render_node()):
        choice.vulkan = kit
    elif others:
        choice.warnings.append(
            f"{others} GPU not usable: no Vulkan driver; sudo apt install mesa-vulkan-drivers; {AGAIN}"
        )
    else:
        choice.notes.append(
            "Vulkan skipped: no GPU with a Vulkan driver on this machine; force it with --backends cpu,vulkan"
        )
