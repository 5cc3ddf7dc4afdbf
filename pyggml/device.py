"""Devices: what this machine can compute on, and the backend modules behind them.

Modules are loaded one by one from the package's own folder, so that a module whose driver is
missing is a recorded problem with the loader's words and not a silent absence. Loading happens once
per process, at the first question about devices.
Device names: `cpu`, `cuda:N`, `vulkan:N`, in PCI order unless CUDA_DEVICE_ORDER says otherwise.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ._ffi import ffi, lib
from .device_names import first_interfaces, fitting, shown
from .errors import BuildError, DeviceError
from .transport import clear_peer_environment

LIBRARY_DIR: Path = Path(__file__).parent / "_lib"
GPU_MODULES = ("cuda", "vulkan")
_SOFTWARE_RENDERERS = ("llvmpipe", "lavapipe", "swiftshader")


@dataclass(frozen=True)
class Device:
    """A device that can run graphs.

    `kind` is `cpu`, `gpu`, `igpu`, `accel` or `software` (a software renderer of a GPU interface);
    `bus_id` is its PCI address where it has one. Units: bytes.
    """

    name: str
    description: str
    kind: str
    bus_id: str | None
    memory_total: int
    module: str
    handle: Any = field(repr=False, compare=False)

    @property
    def memory_free(self) -> int:
        """Bytes free now, as the device says; a CUDA card is opened for it, which takes some of them."""
        free, total = ffi.new("size_t *"), ffi.new("size_t *")
        lib.ggml_backend_dev_memory(self.handle, free, total)
        return int(free[0])

    @property
    def memory_free_unopened(self) -> int:
        """Bytes free now, as far as possible without opening the device."""
        if self.module == "cuda" and self.bus_id and "-v" not in self.bus_id:
            from .card_memory import free_bytes

            found = free_bytes(self.bus_id)
            if found is not None:
                return min(found, self.memory_total)  # of a part of a card the driver tells the whole
        return self.memory_free

    @property
    def uuid(self) -> str | None:
        """What tells an NVIDIA card from all others, as `nvidia-smi -L` shows it; None for other devices."""
        from .card_uuid import card_uuid  # which needs the folder of modules that is named here

        return card_uuid(self.bus_id.split("-v")[0]) if self.bus_id else None


@dataclass(frozen=True)
class ModuleProblem:
    """A backend module that is installed and cannot be loaded."""

    module: str
    problem: str


def _cpu_score(path: Path) -> int:
    """How well a CPU variant fits this processor; 0 when it cannot run here."""
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    score = getattr(library, "ggml_backend_score", None)
    return int(score()) if score is not None else 1


def _pick_modules(problems: list[ModuleProblem]) -> list[Path]:
    """The module files to load: the best CPU variant, then every GPU module."""
    scored = []
    for path in sorted(LIBRARY_DIR.glob("libggml-cpu*.so")):
        try:
            scored.append((_cpu_score(path), path))
        except OSError as error:
            problems.append(ModuleProblem("cpu", str(error)))
    usable = [pair for pair in scored if pair[0] > 0]
    if not usable:
        words = "; ".join(p.problem for p in problems) or "none of them fits this processor"
        raise BuildError(
            f"no CPU backend in {LIBRARY_DIR} ({words}); build one: python build_ggml.py --install"
        )
    others = [LIBRARY_DIR / f"libggml-{name}.so" for name in GPU_MODULES]
    return [max(usable)[1], *(path for path in others if path.exists())]


def _log_level() -> int:
    words = os.environ.get("PYGGML_LOG_LEVEL", "3")
    if not words.isdecimal():
        raise BuildError(f"PYGGML_LOG_LEVEL={words}: it is a number, 1 (debug) to 4 (errors only)")
    return int(words)


@functools.cache
def _load_modules() -> tuple[tuple[Any, ...], tuple[ModuleProblem, ...]]:
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    if not clear_peer_environment(True):
        os.environ["PYGGML_P2P"] = "0"  # what GGML_CUDA_P2P=0 meant, which ggml itself would take as "on"
    if (LIBRARY_DIR / "libpyggml-cuda.so").exists():
        os.environ["GGML_CUDA_DISABLE_GRAPHS"] = "1"  # launches are recorded by us, over whole runs
    lib.pg_log_install(_log_level())
    loaded: list[Any] = []
    problems: list[ModuleProblem] = []
    for path in _pick_modules(problems):
        name = path.name.removeprefix("libggml-").removesuffix(".so").split("-")[0]
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
        except OSError as error:
            problems.append(ModuleProblem(name, str(error)))
            continue
        registry = lib.ggml_backend_load(os.fsencode(path))
        if registry == ffi.NULL:
            problems.append(ModuleProblem(name, "the module found no usable driver"))
        else:
            loaded.append(registry)
    return tuple(loaded), tuple(problems)


def module_problems() -> tuple[ModuleProblem, ...]:
    """The backend modules that are installed here and could not be loaded, with the reason."""
    return _load_modules()[1]


def _kind(device_type: int, description: str) -> str:
    if any(word in description.lower() for word in _SOFTWARE_RENDERERS):
        return "software"
    kinds = {
        lib.GGML_BACKEND_DEVICE_TYPE_CPU: "cpu",
        lib.GGML_BACKEND_DEVICE_TYPE_GPU: "gpu",
        lib.GGML_BACKEND_DEVICE_TYPE_IGPU: "igpu",
    }
    return kinds.get(device_type, "accel")


@functools.cache
def devices() -> tuple[Device, ...]:
    """All devices of this machine, the CPU first, then by module and number."""
    found = []
    for registry in _load_modules()[0]:
        module = ffi.string(lib.ggml_backend_reg_name(registry)).decode().lower()
        for index in range(lib.ggml_backend_reg_dev_count(registry)):
            handle = lib.ggml_backend_reg_dev_get(registry, index)
            description = ffi.string(lib.ggml_backend_dev_description(handle)).decode("utf-8", "replace")
            bus_id, n_bytes = _card_facts(module, index) or _told_facts(handle)
            name = "cpu" if module == "cpu" else f"{module}:{index}"
            kind = _kind(lib.ggml_backend_dev_type(handle), description)
            found.append(Device(name, description, kind, bus_id, n_bytes, module, handle))
    return tuple(found)


def _card_facts(module: str, index: int) -> tuple[str | None, int] | None:
    if module != "cuda":
        return None
    from .card_memory import card_facts  # which needs the folder of modules that is named here

    return card_facts(index)


def _told_facts(handle: Any) -> tuple[str | None, int]:
    """Address and bytes as ggml tells them, which opens a CUDA card."""
    props = ffi.new("struct ggml_backend_dev_props *")
    lib.ggml_backend_dev_get_props(handle, props)
    return (
        ffi.string(props.device_id).decode() if props.device_id != ffi.NULL else None,
        int(props.memory_total),
    )


def device(name: str | Device) -> Device:
    """Return the device called `name`.

    A name, a PCI bus id, a UUID or its beginning (`GPU-1a2b`), or a product name that fits one device only.
    Raises DeviceError with the names that would work.
    """
    if isinstance(name, Device):
        return name
    everything = devices()
    found = fitting(name, everything)
    if len(found) == 1:
        return found[0]
    if found:
        raise DeviceError(f"device {name!r} fits {shown(found)}; name one of them")
    names = ", ".join(d.name for d in everything)
    raise DeviceError(f"no device {name!r}; this machine has {names}{_why_missing(name.strip().lower())}")


def _why_missing(wanted: str) -> str:
    module = wanted.split(":")[0]
    problems = [p for p in module_problems() if p.module == module]
    if problems:
        return f"; the {module} module could not be loaded: {problems[0].problem}"
    if module in GPU_MODULES and not (LIBRARY_DIR / f"libggml-{module}.so").exists():
        return f"; {module} was not built: python build_ggml.py --backends cpu,{module} --install"
    if module == "vulkan" and not any(d.module == module for d in devices()):
        return "; Vulkan shows no graphics card here; GGML_VK_VISIBLE_DEVICES=0 takes its software driver, for trying"
    return ""


def choose_default(found: Sequence[Device], memory_free: Callable[[Device], int]) -> Device:
    """Of these devices the discrete GPU with most free memory, else the CPU.

    Software renderers, integrated GPUs and a card's second interface are never chosen.
    """
    cards = first_interfaces([d for d in found if d.kind == "gpu"])
    return max(cards, key=memory_free) if cards else next(d for d in found if d.kind == "cpu")


def discrete_gpus() -> list[Device]:
    """The discrete GPUs, each once, by the interface whose module comes first."""
    return first_interfaces([d for d in devices() if d.kind == "gpu"])


def default_device() -> Device:
    """The device that is used when none is named: the discrete GPU with most free memory, else the CPU.

    Software renderers, integrated GPUs and a card's second interface are never the default. No CUDA card is
    opened where the driver tells its memory.
    """
    return choose_default(devices(), lambda d: d.memory_free_unopened)
