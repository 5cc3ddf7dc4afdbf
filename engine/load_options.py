"""How a model is to lie on devices: the options of loading, checked as far as they can be without a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

import pyggml as gg

from .balance import check_n_ranks
from .errors import ConfigError
from .placement import MIN_CTX
from .reserve import Asked, Reserve, read_reserve, reserve_on

FITS = ("off", "auto")
DEFAULT_BATCH = 512
REDUCE_DTYPES = ("f32", "bf16", "f16")
TRANSPORTS = ("auto", "push", "nccl", "push-shm", "nccl-shm", "host")

_COUNTS = ("parallel", "batch", "threads", "tp", "layer_split", "ctx")
_TEXTS = {
    "device": "cpu", "tensor_split": "3,1", "expert_split": "inside", "cache_type_k": "f16", "cache_type_v": "f16",
    "fit": "auto", "transport": "host", "reduce_dtype": "bf16",
}  # fmt: skip
_CAN_BE_NONE = ("batch", "threads", "tp", "layer_split", "ctx", "device", "tensor_split", "fit", "transport")


def _visible(n: int) -> str:
    """The setting that lets this process see fewer than n CUDA cards, where it does."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or len([part for part in listed.split(",") if part.strip()]) >= n:
        return ""
    return f" with CUDA_VISIBLE_DEVICES={listed!r}"


def _long(name: str) -> str:
    return name.replace("_", "-")


@dataclass(frozen=True)
class LoadOptions:
    """How a model is to lie on devices; the names are the command line's.

    `device` is a name or a list with commas; `tp` cuts every layer over that many ranks, `layer_split`
    puts whole layers on that many devices; neither means one device. `tensor_split` are the ranks'
    shares ("3,1"; with layer_split the numbers of layers). `ctx` None means the largest context that
    fits. `reserve` are MiB that stay free on each device, one number for all or one a device. `transport` is
    how ranks exchange sums, by default as measured, `reduce_dtype` what large sums travel as. `cuda_graphs`
    allows the launches of a decode step to be recorded and replayed.
    `fit` "auto" changes the options of a model that does not fit until it does.
    Raises ConfigError for values that make no sense.
    """

    device: str | None = None
    tp: int | None = None
    layer_split: int | None = None
    tensor_split: str | None = None
    expert_split: str = "inside"
    ctx: int | None = None
    parallel: int = 4
    batch: int | None = None
    threads: int | None = None
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    fit: str | None = None
    transport: str | None = None
    cuda_graphs: bool = True
    reserve: Asked = None
    reduce_dtype: str = "f32"

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value, least = getattr(self, name), MIN_CTX if name == "ctx" else 1
            if value is None and name in _CAN_BE_NONE:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise ConfigError(f"{_long(name)} = {value!r}; a whole number is needed, at least {least}")
            if value < least:
                raise ConfigError(f"{_long(name)} = {value}; at least {least} is needed")
        for name, example in _TEXTS.items():
            value = getattr(self, name)
            if not isinstance(value, str) and not (value is None and name in _CAN_BE_NONE):
                raise ConfigError(f"{_long(name)} = {value!r}; text is needed, such as {example!r}")
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigError(f"cuda-graphs = {self.cuda_graphs!r}; true or false is needed")
        read_reserve(self.reserve)
        if self.fit not in (None, *FITS):
            raise ConfigError(f"fit = {self.fit!r}; {' and '.join(FITS)} are supported")
        if self.transport is not None and self.transport not in TRANSPORTS:
            raise ConfigError(
                f"transport = {self.transport!r}; {', '.join(TRANSPORTS[:-1])} and {TRANSPORTS[-1]} are supported"
            )
        if self.reduce_dtype not in REDUCE_DTYPES:
            raise ConfigError(f"reduce-dtype = {self.reduce_dtype!r}; {', '.join(REDUCE_DTYPES)} are supported")
        if self.tp is not None and self.layer_split is not None:
            raise ConfigError(
                f"--tp {self.tp} and --layer-split {self.layer_split} exclude each other: the one cuts inside layers, "
                "the other deals whole layers; give one of them"
            )
        if self.tensor_split is not None and self.n_ranks == 1:
            raise ConfigError(
                f"--tensor-split {self.tensor_split} needs --tp or --layer-split with 2 or more devices"
            )
        if self.expert_split != "inside" and self.tp is None:
            raise ConfigError(f"--expert-split {self.expert_split} needs --tp, which cuts layers over devices")
        if self.reduce_dtype != "f32" and self.tp is None:
            raise ConfigError(f"--reduce-dtype {self.reduce_dtype} needs --tp, whose ranks sum; nothing else does")

    @property
    def planned_batch(self) -> int:
        """The tokens of a step that memory is planned for; without a wish larger steps take what is left."""
        return self.batch or DEFAULT_BATCH

    @property
    def n_ranks(self) -> int:
        """The number of ranks asked for."""
        return self.tp or self.layer_split or 1

    @property
    def where(self) -> dict[str, str | int]:
        """The options that say where the model is to lie, by their long names."""
        reserve = ",".join(map(str, read_reserve(self.reserve)))
        given = {
            "device": self.device,
            "tp": self.tp,
            "layer-split": self.layer_split,
            "tensor-split": self.tensor_split,
            "reserve": reserve or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def text(self) -> str:
        """Those options as they are written on a command line."""
        return " ".join(f"--{name} {value}" for name, value in self.where.items())

    def changed(self, settings: Mapping[str, str | int]) -> LoadOptions:
        """With these options by long name in place of the own ones that say where, and others that they name."""
        nowhere = replace(
            self, device=None, tp=None, layer_split=None, tensor_split=None, expert_split="inside", reserve=None,
            reduce_dtype="f32",
        )  # fmt: skip
        of_sums = {"expert_split": self.expert_split, "reduce_dtype": self.reduce_dtype} if "tp" in settings else {}
        named: dict[str, object] = {name.replace("-", "_"): value for name, value in settings.items()}
        return replace(nowhere, **(of_sums | named))  # type: ignore[arg-type]

    def reserve_on(self, devices: Sequence[gg.Device]) -> Reserve:
        """What stays free of these devices, which are those of the options; raises ConfigError for a longer list."""
        return reserve_on(self.reserve, [d.name for d in devices])

    def devices(self) -> list[gg.Device]:
        """One device a rank.

        Raises ConfigError where the list and the number of ranks do not match, DeviceError for a name.
        """
        n, option = self.n_ranks, "tp" if self.tp else "layer-split"
        check_n_ranks(option, n)
        if self.device is not None:
            return self._listed(n)
        if n == 1:
            return [gg.default_device()]
        cards = gg.discrete_gpus()
        if len(cards) < n:
            names = ", ".join(d.name for d in cards) or "none"
            works = f"--{option} {len(cards)} works, or list" if len(cards) > 1 else "list"
            raise ConfigError(
                f"--{option} {n} needs {n} GPUs and this machine shows {len(cards)} ({names}){_visible(n)}; {works} "
                f"devices, which may come more than once, as in --device {','.join(['cpu'] * n)}"
            )
        return cards[:n]

    def _listed(self, n: int) -> list[gg.Device]:
        assert self.device is not None, "there is a list"
        listed = [gg.device(name) for name in self.device.split(",")]
        if len(listed) == n:
            return listed
        if len(listed) > 1:
            hint = f"--tp {len(listed)} or --layer-split {len(listed)}"
        else:
            hint = f"--device {','.join([self.device] * n)}"
        raise ConfigError(f"--device {self.device} lists {len(listed)} devices for {n} ranks; use {hint}")
