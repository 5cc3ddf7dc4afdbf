"""Devices as the planner sees them: free memory, and what they can do with this model's weights and cache.

Opens each device for a moment and allocates nothing on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyggml as gg

from .balance import DeviceFacts
from .demand import CacheFacts, ModelFacts
from .host_memory import available_bytes
from .hparams import Heads
from .kv_cache import WINDOW
from .reserve import NO_RESERVE, Reserve
from .slices import WHOLE
from .weight_table import Use

ROW_UNITS = (1, 2, 4, 8, 16, 32, 64)
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


def device_facts(
    devices: Sequence[gg.Device], model: ModelFacts, cache: CacheFacts, reserve: Reserve = NO_RESERVE
) -> list[DeviceFacts]:
    """The facts of each device, which may come more than once, without the memory that stays free."""
    known = {d.name: _facts(d, model, cache, reserve.bytes_of(d.name)) for d in dict.fromkeys(devices)}
    return [known[d.name] for d in devices]


def serving_devices() -> list[gg.Device]:
    """The devices that models are put on when none is named: the discrete GPUs, then the CPU."""
    return [*gg.discrete_gpus(), gg.device("cpu")]


def free_bytes(device: gg.Device, *, opens: bool = True) -> int:
    """Bytes that can be allocated on a device now. Unless it `opens`, a card stays closed, as far as that is possible,
    and what opening will take of it counts as free."""
    host = available_bytes() if device.kind == "cpu" else None
    found = device.memory_free if opens else device.memory_free_unopened
    return found if host is None else min(host, found)


def _facts(device: gg.Device, model: ModelFacts, cache: CacheFacts, reserved_bytes: int) -> DeviceFacts:
    with gg.Backend(device, threads=1) as backend:
        return DeviceFacts(
            device.name,
            device.kind,
            device.description,
            max(0, free_bytes(device) - reserved_bytes),
            looks_up=_can_look_up(backend, model),
            reserved_bytes=reserved_bytes,
            maps_head=device.kind == "cpu" and model.is_tied and _is_plain(backend, model),
            has_flash_attention=_has_flash_attention(backend, model, cache),
            layouts=tuple(_layouts(backend, model)),
            card=str(device.bus_id or ""),
        )


def _layouts(backend: gg.Backend, model: ModelFacts) -> Iterator[tuple[str, bool, int, float]]:
    """How much larger weights become in the layouts that the device multiplies by, for each type."""
    matrices = [row for row in model.rows if row.name in model.types and row.use in (Use.MUL_MAT, Use.MUL_MAT_ID)]
    widths = {(str(model.types[row.name]), row.use is Use.MUL_MAT_ID): row.shape[-1] for row in matrices}
    for (name, experts), width in widths.items():
        kind = gg.dtype(name)
        for unit in ROW_UNITS:
            few, more = ((*((2,) if experts else ()), n * unit, width) for n in (1, 3))
            with contextlib.suppress(gg.DeviceError):  # which loading refuses by the weight's name
                # What rows add: behind a matrix some devices keep a little free, however large it is.
                sizes = [backend.weight_bytes(shape, kind, experts=experts) for shape in (few, more)]
                factor = (sizes[1] - sizes[0]) / (WHOLE.n_bytes(more, kind) - WHOLE.n_bytes(few, kind))
                if factor != 1.0:
                    yield name, experts, unit, factor
                    break


def _can_look_up(backend: gg.Backend, model: ModelFacts) -> bool:
    with gg.Graph(backend, max_nodes=8) as g:
        table = g.phantom("table", (model.hp.n_vocab, model.hp.n_embd), str(model.types[_EMBEDDING]))
        return backend.supports(gg.get_rows(table, g.input("ids", (1,), "i32")))


def _is_plain(backend: gg.Backend, model: ModelFacts) -> bool:
    """Whether the head is multiplied by in the layout that it has in the file."""
    kind = gg.dtype(str(model.types[_HEAD]))
    plain = backend.buffer_types()[-1]
    return bool(backend.weight_buffer_type((model.hp.n_vocab, model.hp.n_embd), kind) == plain)


def _has_flash_attention(backend: gg.Backend, model: ModelFacts, cache: CacheFacts) -> bool:
    """Whether attention keeps no scores; see blocks/attention.py."""
    if cache.type_k == "f32":
        return False
    hp = model.hp
    type_v = cache.type_v if hp.has_v_cache else cache.type_k

    def is_supported(kv: Heads) -> bool:
        with gg.Graph(backend, max_nodes=16) as g:
            q = g.phantom("q", (1, hp.n_head, 1, kv.head_dim), "f32")
            k = g.phantom("k", (1, kv.n_head_kv, WINDOW, kv.head_dim), cache.type_k)
            v = g.phantom("v", (1, kv.n_head_kv, WINDOW, kv.head_dim_v), type_v)
            mask = g.phantom("mask", (1, 1, 1, WINDOW), "f16")
            return backend.supports(gg.flash_attn(q, k, v, mask, scale=hp.attn_scale, softcap=hp.attn_softcap))

    return all(is_supported(kv) for kv in {hp.heads(i) for i in range(hp.n_layer)})
