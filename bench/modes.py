"""The ways to run a model on one and two devices, with our options and llama.cpp's for each.

Modes after a colon are for machines whose cards cannot reach each other: theirs then exchanges sums through shared
memory too, as NCCL does without its peer transport, or as its own two-card kernel does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES = ("one", "tp", "layer", "tp:push-shm", "tp:nccl-shm", "tp:host", "layer:host")
USUAL = NAMES[:3]


@dataclass(frozen=True)
class Mode:
    """A mode: options of our LLM, flags and environment of llama.cpp's programs (None where it has no such mode)."""

    name: str
    n_devices: int
    ours: dict[str, Any]
    their_flags: list[str] | None
    their_env: dict[str, str] = field(default_factory=dict)
    our_env: dict[str, str] = field(default_factory=dict)
    note: str = ""
    reads_at_once: int = 1  # devices that read weights at the same time for one sequence


def modes(names: Sequence[str], devices: Sequence[str], threads: int) -> list[Mode]:
    """The named modes on these devices; llama.cpp runs on CUDA cards, or on the CPU as one device."""
    if devices[0].startswith("cpu"):
        return [_on_cpu(name, devices, threads) for name in names]
    return [_on_cards(name, devices) for name in names]


def _on_cpu(name: str, devices: Sequence[str], threads: int) -> Mode:
    kind, _, transport = name.partition(":")
    if kind == "one":
        flags = ["-ngl", "0", "-t", str(threads)]
        return Mode("one", 1, {"device": devices[0], "threads": threads}, flags)
    option = {"tp": "tp", "layer": "layer_split"}[kind]
    ours: dict[str, Any] = {"device": ",".join(devices), option: len(devices)}
    return Mode(f"{kind} {len(devices)}{f' {transport}' if transport else ''}", len(devices), ours, None)


def _on_cards(name: str, devices: Sequence[str]) -> Mode:
    kind, _, transport = name.partition(":")
    cards = [device.partition(":")[2] for device in devices]
    gpus = ["-ngl", "99"]
    if kind == "one":
        return Mode(
            "one", 1, {"device": devices[0]}, [*gpus, "-sm", "none"], {"CUDA_VISIBLE_DEVICES": cards[0]}
        )
    n = len(devices)
    env = {"CUDA_VISIBLE_DEVICES": ",".join(cards)}
    split = "tensor" if kind == "tp" else "layer"
    ours: dict[str, Any] = {"device": ",".join(devices), "tp" if kind == "tp" else "layer_split": n}
    n_reading = n if kind == "tp" else 1
    flags = [*gpus, "-sm", split]
    if not transport:
        # Peer access between cards is off in llama.cpp unless asked for: the stronger peer has it.
        return Mode(f"{kind} {n}", n, ours, flags, {**env, "GGML_CUDA_P2P": "1"}, reads_at_once=n_reading)
    env["NCCL_P2P_DISABLE"] = "1"
    note = "theirs: NCCL_P2P_DISABLE=1"
    if transport in ("host", "push-shm"):
        note += ", no peer access"
        if kind == "tp":
            env["GGML_CUDA_ALLREDUCE"] = "internal"
            note = "theirs: GGML_CUDA_ALLREDUCE=internal (through pinned host memory), no peer access"
    ours["transport"] = transport
    return Mode(f"{kind} {n} {transport}", n, ours, flags, env, {"PYGGML_P2P": "0"}, note, n_reading)
