"""Graphs as models build them, of which runs of nodes are computed at once."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
from graphs import random

import pyggml as gg
from pyggml._ffi import ffi, lib

EPS = 1e-5
SPARE_ROWS = 44  # of a slot, behind the window


@dataclass(frozen=True)
class Case:
    """A layer's part: `n` columns of `k` values, `rows` rows of weights of one type.

    Attention sees `n_kv` rows. With is_exact the weights are float32 of the same values, so that activations are not
    rounded.
    """

    kind: str
    n: int = 1
    k: int = 512
    rows: int = 96
    type: str = "q8_0"
    head_dim: int = 64
    is_neox: bool = False
    is_exact: bool = False
    n_kv: int = 256

    def __str__(self) -> str:
        tail = f"-{self.head_dim}{'neox' if self.is_neox else ''}" if "heads" in self.kind else ""
        window = f"-{self.n_kv}" if "attends" in self.kind else ""
        return f"{self.kind}-{self.type}-{self.rows}x{self.k}-{self.n}{tail}{window}"


@functools.lru_cache(maxsize=128)
def quantised(rows: int, k: int, kind: str, seed: int) -> np.ndarray:
    """The bytes of random rows."""
    raw = gg.quantize(random(rows, k, seed=seed) / np.float32(k**0.5), kind, n_threads=4)
    raw.flags.writeable = False
    return raw


def of_bytes(g: gg.Graph, raw: np.ndarray, shape: tuple[int, ...], kind: str) -> gg.Tensor:
    return g.weight(SimpleNamespace(name="", shape=shape, type=gg.dtype(kind), data=raw))


def matrix(g: gg.Graph, rows: int, k: int, kind: str, seed: int, *, is_exact: bool = False) -> gg.Tensor:
    raw = quantised(rows, k, kind, seed)
    return g.weight(gg.dequantize(raw, kind, (rows, k))) if is_exact else of_bytes(g, raw, (rows, k), kind)


def norm(g: gg.Graph, x: gg.Tensor) -> gg.Tensor:
    n = x.shape[-1]
    return gg.rms_norm(x, EPS) * g.weight(1 + 0.1 * random(n, seed=n))


def build(g: gg.Graph, case: Case) -> dict[str, np.ndarray]:
    """Add the case's nodes; returns its inputs."""
    inputs = {"x": 3 * random(case.n, case.k)}
    x = g.input("x", (case.n, case.k))
    if "added" in case.kind:
        inputs["addend"] = random(case.n, case.k, seed=1)
        addend = g.input("addend", (case.n, case.k))
        x = g.output("sum", addend + x)
    if "heads" in case.kind:
        inputs |= _heads(g, case, norm(g, x))
        g.output("kept", x * 2.0)
        return inputs
    hidden = norm(g, x) if "normed" in case.kind else x
    y = gg.mul_mat(matrix(g, case.rows, case.k, case.type, 2, is_exact=case.is_exact), hidden)
    if "router" in case.kind:
        g.output("normed", hidden)
    if "gate" in case.kind:
        up = gg.mul_mat(matrix(g, case.rows, case.k, case.type, 3, is_exact=case.is_exact), hidden)
        y = (gg.geglu if "gelu" in case.kind else gg.swiglu)(y, up)
    if "bias" in case.kind:
        y = y + g.weight(random(case.rows, seed=4))
    if "residual" in case.kind:
        inputs["residual"] = random(case.n, case.rows, seed=5)
        y = y + g.input("residual", (case.n, case.rows))
    g.output("y", y)
    g.output("kept", x * 2.0)  # as models need it later
    if "added" in case.kind:
        g.output("kept addend", addend * 2.0)
    return inputs


def _heads(g: gg.Graph, case: Case, x: gg.Tensor) -> dict[str, np.ndarray]:
    n, d = case.n, case.head_dim
    n_head, n_head_kv = (6, 2) if "three" in case.kind else (24, 2) if "twelve" in case.kind else (4, 2)
    positions = g.input("positions", (n,), "i32")
    rows = g.input("rows", (n,), "i64")

    factors = g.weight(1 + 0.5 * np.abs(random(d // 2))) if "factors" in case.kind else None

    def project(name: str, heads: int, seed: int) -> gg.Tensor:
        kind = "q6_k" if name == "v" and "mixed" in case.kind else case.type
        y = gg.mul_mat(matrix(g, heads * d, case.k, kind, seed, is_exact=case.is_exact), x)
        if "bias" in case.kind:
            y = y + g.weight(random(heads * d, seed=seed))
        if name == "v":
            return y
        y = y.reshape(n, heads, d)
        if "qk" in case.kind:
            y = norm(g, y.reshape(n, heads * d)).reshape(n, heads, d) if "wide" in case.kind else norm(g, y)
        yarn = {"ext_factor": 1.0, "freq_scale": 0.25, "n_ctx_orig": 64} if "yarn" in case.kind else {}
        n_dims = d // 2 if "part" in case.kind else d
        return gg.rope(y, positions, n_dims=n_dims, neox=case.is_neox, freq_factors=factors, **yarn)

    attends = "attends" in case.kind
    n_rows = (n + 1) * (case.n_kv + SPARE_ROWS) + 1 if attends else 40
    tables = {name: g.state(name, (n_rows, n_head_kv * d), "f16") for name in ("k", "v")}
    if attends:
        for table in tables.values():
            table.set(random(*table.shape, seed=10))
        if "written-before" in case.kind:
            tables["k"] = _write_first_rows(g, tables["k"])
        elif "written-beside" in case.kind:  # what attention reads does not say so
            _write_first_rows(g, tables["v"])
    q = g.do(project("q", n_head, 6))
    for name, seed in (("k", 7), ("v", 8)):
        if name == "v" and "one-table" in case.kind:
            tables["v"] = tables["k"]
        tables[name] = g.do(gg.set_rows(tables[name], project(name, n_head_kv, seed).reshape(n, -1), rows))
    if attends:
        return _attend(g, case, q, tables)
    g.output("q", q.reshape(n, n_head, d).permute(1, 0, 2).cont())
    for name, table in tables.items():
        g.output(name, table.cast("f32"))
    return {
        "positions": np.arange(11, 11 + n, dtype=np.int32),
        "rows": np.arange(30, 30 - n, -1, dtype=np.int64),
    }


def table_of(g: gg.Graph, name: str) -> gg.Tensor:
    """The cache of attention's K or V, which holds random rows before the first run."""
    return next(buffer[name] for buffer in g._buffers if name in buffer)


def _write_first_rows(g: gg.Graph, table: gg.Tensor) -> gg.Tensor:
    rows = random(3, table.shape[-1], seed=11)
    return g.do(gg.set_rows(table, g.weight(rows), g.weight(np.arange(3, dtype=np.int32))))


def _attend(g: gg.Graph, case: Case, q: gg.Tensor, tables: dict[str, gg.Tensor]) -> dict[str, np.ndarray]:
    """One token of each of n sequences, in slots behind the first; the last one's own row may lie behind them all."""
    n, d, n_kv, slot_rows = case.n, case.head_dim, case.n_kv, case.n_kv + SPARE_ROWS
    n_head, width = q.shape[1], tables["k"].shape[-1]
    slot, row = slot_rows * width * 2, width * 2
    n_head_kv, first = (1, d * 2) if "second-head" in case.kind else (width // d, 0)
    step = 255 * row if "shared-rows" in case.kind else slot
    windows = [
        gg.view(tables[name], (n, n_kv, n_head_kv, d), (step, row, d * 2), slot + first).permute(0, 2, 1, 3)
        for name in ("k", "v")
    ]
    rotated, q = q, q.reshape(n, 1, n_head, d)
    mask = g.input("mask", (1 if "one-mask" in case.kind else n, 1, 1, n_kv), "f16")
    if "two-tokens" in case.kind:
        q, mask = gg.concat(q, q, 1), gg.concat(mask, mask, 2)
    sinks = g.weight(random(n_head, seed=9)) if "sinks" in case.kind else None
    seen = gg.flash_attn(
        q.permute(0, 2, 1, 3), *windows, mask, scale=d**-0.5,
        softcap=2.0 if "capped" in case.kind else 0.0, sinks=sinks,
    )  # fmt: skip
    g.output("seen", g.do(seen))
    if "kept-q" in case.kind:
        g.output("q", rotated)
    elif "twice-q" in case.kind:
        g.output("q", rotated * 2.0)
    if "written-later" in case.kind:
        for table in tables.values():
            _write_first_rows(g, table)
    if "product" in case.kind:
        g.output("y", g.do(gg.mul_mat(matrix(g, 96, n_head * d, "q8_0", 12), seen.reshape(n, -1))))
    for name, table in tables.items():
        g.output(name, table.cast("f32"))
    positions = (n_kv // 2 + 37 * np.arange(n) + 5) % n_kv
    rows = slot_rows * np.arange(1, n + 1) + positions
    if "outside" in case.kind:
        rows[-1] = (n + 1) * slot_rows
    last_seen = positions.max(keepdims=True) if "one-mask" in case.kind else positions
    is_seen = np.arange(n_kv) <= last_seen[:, None]
    mask_of = np.where(is_seen, np.float16(0), np.float16(-np.inf)).reshape(-1, 1, 1, n_kv)
    return {"positions": positions.astype(np.int32), "rows": rows, "mask": mask_of}


def op_name(node: object) -> str:
    return str(ffi.string(lib.ggml_op_desc(node)).decode())


def matches(g: gg.Graph, *, may_attend: bool = True) -> list[tuple[int, object]]:
    """Each run of nodes in order: how many nodes and what was found, None for a node that stays alone."""
    found = []
    at, stop = 0, g.n_nodes
    while at < stop:
        fused = ffi.new("pg_fused *")
        n = lib.pg_fuse_match(g._graph, at, stop, may_attend, fused)
        found.append((max(n, 1), fused if n else None))
        at += max(n, 1)
    return found
